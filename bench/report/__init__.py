"""The report of a comparison: a PySpark job that reads run folders, and writes tables and an HTML page."""
