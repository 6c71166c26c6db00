from toposcope.cli import main

main()
