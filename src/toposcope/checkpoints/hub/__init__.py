"""Models by their names on the hub: `name` parses, `repo` knows a commit, `file` reads ranges, `opening` opens."""
