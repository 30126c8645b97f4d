"""Railyard: GPU training fabrics, emulated on real packets. The sub-packages are the top-level folders of the
checkout."""
