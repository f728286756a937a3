"""`dear export`: an adapter as ONNX files, and class features for them."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import columns, printable, say
from dear.options.commands import Export


def export(options: Export) -> None:
    """Write an adapter as ONNX files, which run without torch, or class features for them."""
    from dear.workflows.export import ExportClasses, export_class_features, write_export
    from dear.workflows.predict import chosen_classes

    names = chosen_classes(options.classes, options.names)
    if options.onnx is not None:
        found = write_export(
            options.run,
            options.onnx,
            ExportClasses(names, options.template, options.descriptions),
            int8=options.int8,
            fp16=options.fp16,
            threads=options.threads,
            allow_pickled=options.allow_pickled,
            overwrite=options.overwrite,
        )
        rows = [(name, f"{one.bytes / 1e6:,.1f} MB", one.summary()) for name, one in found.files.items()]
        typer.echo(columns(rows))
        if found.no_image_encoder:
            say(f"note: {found.no_image_encoder}")
        typer.echo(printable(f"exported: {options.onnx}"))
    if options.class_features is not None:
        path = export_class_features(
            options.run,
            options.class_features,
            names,
            template=options.template,
            descriptions=options.descriptions,
            threads=options.threads,
            allow_pickled=options.allow_pickled,
            overwrite=options.overwrite,
        )
        typer.echo(printable(f"class features: {path}"))


app = single_command(export, Export, plugins=True)
