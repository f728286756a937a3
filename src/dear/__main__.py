"""`python -m dear` is the `dear` command; `torchrun -m dear train …` runs it in several processes."""

from dear.entry import main

main()
