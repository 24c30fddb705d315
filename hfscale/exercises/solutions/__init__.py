"""One solution for each exercise. The notebooks show them folded; a test holds their text equal to these files."""
