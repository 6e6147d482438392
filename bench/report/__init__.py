"""The report of a comparison: a PySpark job from run folders to marts and one HTML page."""
