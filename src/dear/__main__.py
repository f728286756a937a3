"""`python -m dear` is the `dear` command; `torchrun -m dear train …` runs it in several processes."""

from dear.cli import main

main()
