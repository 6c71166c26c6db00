"""What every floor stands on: errors, files, untrusted input, printing, memory, statistics, small linear algebra."""
