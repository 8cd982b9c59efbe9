"""The page of a report: tables and figures of results files in one HTML file."""
