"""Which settings of MPI steer a measurement; those below are of real launches."""

import sys
from pathlib import Path

from hpcfl.system import mpiconfig, mpisettings

# What the launchers set for rank 0 by themselves, here of Open MPI 4.1 and 5, MPICH and Intel MPI.
OF_A_LAUNCH = (
    *("OMPI_ARGV", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_FILE_LOCATION"),
    *("OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_cpu_type", "OMPI_MCA_PREFIXES"),
    *("OMPI_MCA_ess_base_jobid", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_orte_hnp_uri"),
    *("OMPI_MCA_orte_precondition_transports", "OMPI_MCA_orte_top_session_dir"),
    *("PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI41", "PMIX_SERVER_TMPDIR", "PMIX_ID"),
    *("PMIX_DSTORE_21_BASE_PATH", "PMIX_HOSTNAME", "PRTE_LAUNCHED", "PRTE_MCA_plm_ssh_agent"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_HOSTNAME", "MV2_COMM_WORLD_LOCAL_RANK"),
    *("I_MPI_HYDRA_UUID", "I_MPI_INFO_BRAND", "I_MPI_INFO_SIGN", "I_MPI_ROOT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"),
    *("FI_OPX_UUID", "HDF5_PLUGIN_PATH", "PATH", "KMP_INIT_AT_FORK", "SLURM_EXPORT_ENV"),
    *("FI_CXI_AUTH_KEY", "UCX_AUTH_TOKEN", "MPICH_PASSWORD", "I_MPI_SECRET", "I_MPI_USER_NAME"),
    *("OPENBLAS_USERNAME", "SHARP_COLL_JOB_COMMENT", "MV2_LAUNCH_ARGS_X", "OMPI_MCA_mpi_comment"),
    *("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_slurm_args", "OMPI_MCA_mca_base_env_list"),
    *("PRTE_MCA_ras_base_launch_orted_on_hn", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
)
STEERING = (
    *("OMPI_MCA_btl", "OMPI_MCA_mpi_ft_enable", "OMPI_MCA_pml", "OMPI_MCA_rmaps_rank_file"),
    *("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_rmaps_default_mapping_policy"),
    *("PMIX_MCA_gds", "MPICH_ASYNC_PROGRESS", "MPICH_RANK_REORDER_METHOD", "MPIR_CVAR_CH4_NETMOD"),
    *("I_MPI_FABRICS", "I_MPI_PIN_DOMAIN", "MV2_ENABLE_AFFINITY", "MPI4PY_RC_THREAD_LEVEL"),
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "FI_TCP_IFACE", "PSM3_DEVICES"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "SLURM_MPI_TYPE"),
    *("HCOLL_MAIN_IB", "UCC_TLS", "SHARP_COLL_ENABLE_SAT", "MVP_ENABLE_AFFINITY", "LD_PRELOAD"),
    *("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "GLIBC_TUNABLES", "OMPI_MCA_btl_tcp_if_include"),
    "HDF5_USE_FILE_LOCKING",
)


def test_what_names_a_launch_or_describes_the_machine_does_not_steer():
    for name in OF_A_LAUNCH:
        assert mpisettings.steering({name: "1"}) == {}


def test_what_changes_how_messages_move_steers():
    for name in STEERING:
        assert mpisettings.steering({name: "1"}) == {name: "1"}


def test_what_make_setup_writes_is_found_with_what_a_user_wrote(monkeypatch, tmp_path):
    (tmp_path / "etc").mkdir()
    for setting in mpiconfig._SETTINGS:
        mpiconfig._add(tmp_path / "etc" / setting.file, setting)
    (tmp_path / "home/.openmpi").mkdir(parents=True)
    (tmp_path / "home/.openmpi/mca-params.conf").write_text(
        "# pml = ob1\n  btl = tcp , self \nbtl_tcp_links=\nplm_rsh_agent = sshpass -p hunter2 ssh\n"
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(mpisettings, "_MAPS", tmp_path / "none")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")

    assert mpisettings.parameters() == {
        **{setting.file: {setting.key: setting.value} for setting in mpiconfig._SETTINGS},
        "~/.openmpi/mca-params.conf": {"btl": "tcp , self", "btl_tcp_links": ""},
    }


def test_files_that_a_variable_names_are_read(monkeypatch, tmp_path):
    tuned, other = tmp_path / "tuned.conf", tmp_path / "other.conf"
    tuned.write_text("btl = tcp,self\n")
    other.write_text("pml = ob1\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(mpisettings, "_MAPS", tmp_path / "none")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("OMPI_MCA_mca_base_param_files", f"{tuned}:{other},{tmp_path}/none")

    assert mpisettings.parameters() == {
        str(tuned): {"btl": "tcp,self"},
        str(other): {"pml": "ob1"},
    }


def test_the_files_are_those_of_the_library_that_is_loaded(monkeypatch, tmp_path):
    for name in ("loaded", "python"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/openmpi-mca-params.conf").write_text(f"btl = {name}\n")
    library = tmp_path / "loaded/lib/libmpi.so.40.40.9"
    (tmp_path / "maps").write_text(f"7f00-7f01 r-xp 00000000 fe:00 12    {library}\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setattr(mpisettings, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)

    assert mpisettings.parameters() == {"openmpi-mca-params.conf": {"btl": "loaded"}}


def test_a_distributions_library_has_its_files_elsewhere(monkeypatch, tmp_path):
    (tmp_path / "openmpi").mkdir()
    (tmp_path / "openmpi/openmpi-mca-params.conf").write_text("btl = ^openib\n")
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 0 fe:00 12 /usr/lib/openmpi/lib/libmpi.so.40\n")
    monkeypatch.setattr(mpisettings, "_SYSTEM", tmp_path)
    monkeypatch.setattr(mpisettings, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)

    assert mpisettings.parameters() == {"openmpi-mca-params.conf": {"btl": "^openib"}}


def test_networks_are_told_by_kind_and_rate(monkeypatch, tmp_path):
    port = {"state": "4: ACTIVE", "link_layer": "InfiniBand", "rate": "100 Gb/sec (4X EDR)"}
    card = {"operstate": "up", "type": "1", "speed": "25000"}
    found = {
        "infiniband/mlx5_0/ports/1": port,
        "infiniband/mlx5_1/ports/1": port | {"state": "1: DOWN"},
        "net/ens3": card,
        "net/ens3/device": {},
        "net/virtio": card | {"speed": "-1"},
        "net/virtio/device": {},
        "net/docker0": card,  # no device
        "net/ens4": card | {"operstate": "down"},
        "net/ens4/device": {},
        "net/ib0": card | {"type": "32"},
        "net/ib0/device": {},
        "cxi/cxi0": {},
    }
    for folder, files in found.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(mpisettings, "_NETWORKS", tmp_path)

    assert mpisettings.networks() == [
        *("Ethernet", "Ethernet 25000 Mbit/s", "InfiniBand 100 Gb/sec (4X EDR)", "Slingshot")
    ]
