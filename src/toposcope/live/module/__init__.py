"""A torch attention module of anybody's, tested as a black box: is its position there, in force, of one kind?"""
