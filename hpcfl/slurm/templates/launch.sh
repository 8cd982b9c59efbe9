launcher={{launcher}} server_node={{server_node}}
ntasks=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))}
of_node=${SLURM_TASKS_PER_NODE%%[!0-9]*}
manager=

# Print the number of cores that the job may use on this node. Hardware threads do not count.
count_cores() {
    local allowed range cpu siblings
    allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    for range in ${allowed//,/ }; do
        for ((cpu = ${range%-*}; cpu <= ${range#*-}; cpu++)); do
            siblings=$cpu
            if [[ -r /sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list ]]; then
                read -r siblings </sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list
            fi
            echo "$siblings"
        done
    done | sort -u | wc -l
}

# Set `launch` to the command that starts some ranks. Each is bound to a core of its own; where ranks
# share cores, none is bound, and one that waits gives way.
set_launch() {
    local ranks=$1 per_node=$of_node shared=no hosts=() nodes others node version hosts_file
    if [[ $server_node == yes ]]; then
        # The first node is the server's alone; the other ranks are spread evenly over the others.
        mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
        others=$((${#nodes[@]} - 1))
        per_node=$(((ranks - 1 + others - 1) / others))
        hosts=("${nodes[0]}:1")
        for ((node = 1; node <= others; node++)); do
            hosts+=("${nodes[node]}:$(((ranks - 1) / others + (node <= (ranks - 1) % others)))")
        done
    fi
    if ((ranks > ntasks || per_node > of_node || per_node > $(count_cores))); then
        shared=yes
        export OMPI_MCA_mpi_yield_when_idle=1
        echo "$ranks ranks share cores"
    fi
    if ((${#hosts[@]})); then
        hosts_file=$(mktemp)
        # shellcheck disable=SC2064 # the file of today
        trap "rm -f '$hosts_file'" EXIT
        printf '%s\n' "${hosts[@]}" >"$hosts_file"
    fi

    if [[ $launcher == srun ]]; then
        # Tried with two ranks: where MPI and Slurm do not fit, each rank would run by itself.
        if [[ -z $manager ]]; then manager=$(hpcfl slurm probe); fi
        launch=(srun "--mpi=$manager" --ntasks "$ranks" --cpu-bind=cores)
        if [[ $shared == yes ]]; then
            launch=(srun "--mpi=$manager" --ntasks "$ranks" --overcommit --cpu-bind=none)
        fi
        if ((${#hosts[@]})); then
            # A node's name for each rank.
            awk -F: '{for (rank = 0; rank < $2; rank++) print $1}' "$hosts_file" >"$hosts_file.ranks"
            mv "$hosts_file.ranks" "$hosts_file"
            export SLURM_HOSTFILE=$hosts_file
            launch+=(--distribution=arbitrary)
        fi
        return
    fi

    version=$(mpirun --version 2>&1 || true)
    case $version in
    *"Open MPI"* | *OpenRTE*)
        # By slot: as many on every node as Slurm has tasks there. An Open MPI that may oversubscribe
        # by its own settings would otherwise put all of them on the first.
        launch=(mpirun -n "$ranks" --map-by slot --bind-to core)
        if [[ $shared == yes ]]; then
            launch=(mpirun -n "$ranks" --map-by slot:OVERSUBSCRIBE --bind-to none)
        fi
        if ((${#hosts[@]})); then launch+=(--host "$(IFS=, && echo "${hosts[*]}")"); fi
        return
        ;;
    *"Intel(R) MPI"*)
        # Not its mpirun: that is a shell script, which does not pass signals on.
        launch=(mpiexec.hydra -bootstrap slurm -n "$ranks")
        export I_MPI_PIN=1 I_MPI_PIN_DOMAIN=core SLURM_CPU_BIND=none
        if [[ $shared == yes ]]; then export I_MPI_PIN=0; fi
        ;;
    *HYDRA*)
        launch=(mpirun -n "$ranks")
        # Of the srun that starts a proxy on every node: the proxy binds the ranks.
        export SLURM_CPU_BIND=none
        if [[ $shared == no ]]; then launch+=(-bind-to core); fi
        ;;
    *) launch=(mpirun -n "$ranks") ;;
    esac
    if ((${#hosts[@]})); then
        # Without it Intel MPI keeps to Slurm's number of tasks a node.
        export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
        launch+=(-machinefile "$hosts_file")
    fi
}
