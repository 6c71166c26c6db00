"""Black-box tests of a torch attention module."""
