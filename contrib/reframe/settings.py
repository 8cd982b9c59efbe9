"""A machine on which mpirun starts the ranks at once; sites have settings of their own."""

site_configuration = {
    "systems": [
        {
            "name": "this-machine",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "mpirun",
                    "environs": ["builtin"],
                    # Two at a time would measure each other.
                    "max_jobs": 1,
                }
            ],
        }
    ],
}
