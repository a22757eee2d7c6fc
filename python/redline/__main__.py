"""python -m redline: the program."""
from redline import main

main()
