"""ReFrame checks of hpcfl: rounds are validated, and what they cost is logged.

    reframe -C contrib/reframe/settings.py -c contrib/reframe -r --performance-report

`HpcflBench` is a base for checks of a site's own, as the classes of hpctestlib are: it says what to
run and how to read it, and leaves environment, size and reference values to the site.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_before, sanity_function, variable


class HpcflBench(rfm.RunOnlyRegressionTest):
    """One run of ``hpcfl bench``, on `num_tasks` ranks."""

    #: Aggregation protocols, a check for each.
    protocol = parameter()
    #: Devices of a round; spread over the ranks but the first, which is the server.
    devices = variable(int, value=100)
    #: Parameters of the model.
    dim = variable(int, value=165_000)
    #: Measured rounds.
    rounds = variable(int, value=10)
    #: Further options of ``hpcfl bench``.
    options = variable(list, value=[])
    #: Figures of the footer to log, with their units.
    figures = variable(
        dict,
        value={
            "bytes_up_mean": "B",
            "bytes_down_mean": "B",
            "device_cpu_seconds_median": "s",
            "server_cpu_seconds_median": "s",
            "round_seconds_median": "s",
            "modelled_round_seconds_median": "s",
        },
    )

    executable = "hpcfl"
    # Written where the job runs, and kept with its output.
    results = variable(str, value="run.h5")
    keep_files = ["run.h5"]

    @run_before("run")
    def set_command_line(self):
        self.executable_opts = [
            *("bench", self.protocol, "--devices", str(self.devices), "--dim", str(self.dim)),
            *("--rounds", str(self.rounds), *self.options),
            *("--output", self.results),
        ]

    @sanity_function
    def every_aggregate_was_right(self):
        return sn.assert_found(r"^HPCFL valid: true$", self.stdout)

    @run_before("performance")
    def set_figures(self):
        self.perf_variables = {
            key: sn.make_performance_function(
                sn.extractsingle(rf"^HPCFL {key}: (\S+)$", self.stdout, 1, float), unit
            )
            for key, unit in self.figures.items()
        }


@rfm.simple_test
class HpcflProtocols(HpcflBench):
    """Protocols side by side, small enough for any machine."""

    protocol = parameter(["fedavg", "secagg", "sparse", "cohort"])
    devices = 20
    dim = 10_000
    rounds = 5
    num_tasks = 3
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    tags = {"hpcfl", "mpi"}
