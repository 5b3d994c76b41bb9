"""The laboratory: text, training runs, measurements, studies and their pages. Imports the library."""
