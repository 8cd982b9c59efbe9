#!/bin/bash
# A Slurm of two nodes, n1 and n2, on this machine, as long as standard input stays open.
#
#   cluster.sh FOLDER [SECONDS]
#
# FOLDER is an empty folder of its own; SECONDS is how long the cluster lives at most (600). Needs
# root on Linux. slurm-wlm, munge and libpmix-dev are installed by apt-get when they are missing, unless
# HPCFL_SLURM_INSTALL=no. When the cluster works, "ready" is printed, and SLURM_CONF=FOLDER/slurm.conf
# is all that sbatch needs; FOLDER/tmp is each node's own. Exit status 77: it cannot work here, with
# the reason on standard error.
#
# Everything runs in a PID namespace, whose processes the kernel kills when the first one ends: no
# daemon and no job outlives this script, however it ends. Each slurmd has a host name of its own,
# so that MPI, and the results, see two hosts.
set -euo pipefail

skip() {
    echo "no Slurm here: $1" >&2
    exit 77
}

daemons_are_here() {
    local program
    for program in slurmctld slurmd munged sbatch; do
        command -v $program >/dev/null || return
    done
}

pmix_is_here() {
    compgen -G '/usr/lib*/*/pmix2/lib/libpmix.so' >/dev/null
}

# Install packages.
install() {
    [ "${HPCFL_SLURM_INSTALL:-yes}" != no ] || skip "HPCFL_SLURM_INSTALL=no, and it is not installed"
    command -v apt-get >/dev/null || skip "$* are not installed, nor is apt-get"
    # The packages would start daemons of their own, unless this file forbids it.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        # Expanded now: $policy is gone when the script ends.
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
    fi
    local options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60)
    export DEBIAN_FRONTEND=noninteractive
    timeout 60 apt-get "${options[@]}" update >"$folder/apt.log" 2>&1 </dev/null || true
    timeout 120 apt-get "${options[@]}" install -y --no-install-recommends "$@" \
        >>"$folder/apt.log" 2>&1 </dev/null ||
        skip "apt-get cannot install it: $(tail -n 1 "$folder/apt.log")"
    [ -z "$(trap -p EXIT)" ] || rm -f $policy
    trap - EXIT
}

configure() {
    local port=$((20000 + RANDOM % 10000))
    head -c 1024 /dev/urandom >"$folder/munge.key"
    chmod 600 "$folder/munge.key"
    # CPUs are claimed, not counted: two nodes of a machine with a single core are wanted as well.
    cat >"$folder/slurm.conf" <<END
ClusterName=hpcfl
SlurmctldHost=ctl(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
NodeName=n1 NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8 State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=8 State=UNKNOWN
PartitionName=test Nodes=n[1-2] Default=YES MaxTime=10 State=UP
END
    mkdir "$folder/state" "$folder/spool.n1" "$folder/spool.n2"
    mkdir -p "$folder/tmp" "$folder/tmp.n1" "$folder/tmp.n2"
}

wait_for() {
    local limit=$1
    shift
    for ((tenth = 0; tenth < 10 * limit; tenth++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    tail -n 5 "$folder"/*.log >&2
    skip "it does not come up: $* failed for $limit s"
}

# shellcheck disable=SC2317 # called by wait_for
both_nodes_are_idle() {
    [ "$(timeout 5 sinfo --noheader --states=idle --format=%D)" = 2 ]
}

# What follows runs as the first process of the namespaces.
run() {
    trap exit INT TERM HUP
    export SLURM_CONF=$folder/slurm.conf
    # Nobody outside of the namespace sees these names.
    (echo 127.0.0.1 ctl n1 n2 && cat /etc/hosts) >"$folder/hosts"
    mount --bind "$folder/hosts" /etc/hosts
    # Ranks name their segments after host and process IDs, which another cluster has as well.
    mount -t tmpfs tmpfs /dev/shm
    hostname ctl
    # The folder may be anybody's, which munged does not like; it holds nothing worth keeping.
    munged --force --foreground --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --seed-file="$folder/munge.seed" \
        --log-file="$folder/munged.log" </dev/null >"$folder/munged.out" 2>&1 &
    wait_for 10 munge --no-input --socket="$folder/munge.socket"
    slurmctld -D </dev/null >"$folder/slurmctld.out" 2>&1 &
    wait_for 20 timeout 5 scontrol ping
    for node in n1 n2; do
        unshare --uts --mount "$0" "$folder" "$seconds" $node \
            </dev/null >"$folder/slurmd.$node.out" 2>&1 &
    done
    wait_for 30 both_nodes_are_idle
    echo ready
    # Ends with the input's end, with the time, or with a signal.
    read -r -t "$seconds" _ || true
}

# A node has temporary files of its own: both PMIx servers of a step give theirs the same name.
run_node() {
    hostname "$1"
    mount --bind "$folder/tmp.$1" "$folder/tmp"
    exec slurmd -D -N "$1"
}

folder=$1 seconds=${2:-600}
# Daemons are not on everybody's PATH.
PATH=$PATH:/usr/sbin:/sbin
case ${3:-} in
inside)
    run
    exit
    ;;
n1 | n2) run_node "$3" ;;
esac
if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
    skip "root on Linux is needed"
fi
unshare --pid --fork --kill-child --mount-proc --uts true 2>/dev/null ||
    skip "namespaces are not permitted (unshare)"
# Slurm talks over the loopback device, which Open MPI's daemons on two nodes refuse to do.
grep -qs up /sys/class/net/*/operstate || skip "no network device is up, and MPI wants one"
daemons_are_here || install slurm-wlm munge
# Debian's plugin of Slurm opens the library by the name that only this package has.
pmix_is_here || (install libpmix-dev) || true
daemons_are_here || skip "slurmctld, slurmd, munged or sbatch is not there"
configure
# unshare itself does not heed SIGTERM; and if this script is killed, it must be as well.
setpriv --pdeathsig KILL \
    unshare --pid --fork --kill-child --mount-proc --uts "$0" "$folder" "$seconds" inside <&0 &
cluster=$!
trap 'kill -KILL $cluster' INT TERM HUP
status=0
wait $cluster || status=$?
exit $status
