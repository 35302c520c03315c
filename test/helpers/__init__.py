"""What tests of several folders share; ``test/conftest.py`` makes it importable."""
