"""The reader of every method's files, by name of the method, and the mistakes that files must notice, by file."""

from vectors import family_a, family_b, family_c, family_d, family_e

FAMILIES = (family_a, family_b, family_c, family_d, family_e)
READERS = {name: reader for family in FAMILIES for name, reader in family.READERS.items()}
SPOILT = {stem: mistakes for family in FAMILIES for stem, mistakes in family.SPOILT.items()}


def reader_of(facts):
    """The reader of a file, or None if its method is not known here."""
    return READERS.get(facts["name"])
