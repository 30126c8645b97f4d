"""Several jobs on one fabric: where they are placed, how they slow each other down, and over which links."""
