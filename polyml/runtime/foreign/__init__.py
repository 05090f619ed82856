"""Arrays of other libraries, on the host and on devices: taken as they are, results given back as their kind."""
