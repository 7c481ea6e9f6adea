"""Run the command line as `python -m evokernel`."""

from evokernel.cli import main

main()
