"""Populations: the links, the processors and the availability of devices that are not alike."""
