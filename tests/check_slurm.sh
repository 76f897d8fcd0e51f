#!/bin/sh
# check_slurm.sh PROGRAM: launch/slurm.sbatch under a Slurm of its own (one node, a real slurmctld and slurmd): the job is
# told that its time is up, saves, goes back into the queue, goes on, and ends with the adapter of a run that
# nobody stopped. Needs the packages slurm-wlm and munge, and root; without them it is skipped (77).
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
for tool in munged slurmctld slurmd sbatch; do
    command -v "$tool" >/dev/null || { echo "no $tool: apt-get install slurm-wlm munge"; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "only root can start them"; exit 77; }
scratch=$(mktemp -d)
chmod 755 "$scratch"
host=$(hostname -s)
pids=
cleanup() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    [ ! -e "$scratch/munged.pid" ] || kill "$(cat "$scratch/munged.pid")" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap cleanup EXIT

# ---- the cluster ----

dd if=/dev/urandom of="$scratch/key" bs=1024 count=1 2>/dev/null
chmod 600 "$scratch/key"
munged "--socket=$scratch/munge" "--key-file=$scratch/key" "--pid-file=$scratch/munged.pid" \
    "--log-file=$scratch/munged.log" "--seed-file=$scratch/seed"
port=$((20000 + $$ % 10000))
# cred_expire: a job that was put back starts again after so many seconds.
cat >"$scratch/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge,cred_expire=5
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=sched_interval=1
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
mkdir "$scratch/state" "$scratch/spool"
export SLURM_CONF="$scratch/slurm.conf"
slurmctld -D >"$scratch/slurmctld.out" 2>&1 &
pids="$pids $!"
slurmd -D -N "$host" >"$scratch/slurmd.out" 2>&1 &
pids="$pids $!"

# within SECONDS COMMAND...: until the command succeeds.
within() {
    left=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "FAILED: waited in vain for: $*"; tail -n 5 "$scratch"/*.log "$scratch"/log 2>/dev/null; exit 1; }
        sleep 0.2
    done
}
within 30 sh -c 'sinfo -h -o %T | grep -q idle'

# ---- the job ----

cd "$scratch"
sed 's/overwrite_output_dir: true/overwrite_output_dir: false/' "$root/examples/quickstart.yaml" >job.yaml
ln -s "$root/examples" examples
keys="max_steps=24 logging_steps=1 eval_strategy=no eval_dataset=null save_strategy=steps save_steps=4 total_batch_size=8"
# shellcheck disable=SC2086
"$program" train job.yaml $keys output_dir=whole >whole.log 2>&1 || { cat whole.log; exit 1; }
# shellcheck disable=SC2086
job=$(TESSERA=$program sbatch --parsable --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=5 --output=log \
    "$root/launch/slurm.sbatch" job.yaml $keys output_dir=out)
within 60 grep -q "^step 3/24" log
scancel --signal=USR1 "$job" # what Slurm sends when the limit is near
within 60 grep -q "back into the queue" log
within 120 grep -q "^step 24/24" log
within 60 sh -c "! squeue -h -j $job | grep -q ."
grep -q "resuming from checkpoint-" log || { cat log; echo "FAILED: it did not go on from its checkpoint"; exit 1; }
cmp whole/adapter_model.safetensors out/adapter_model.safetensors
echo "saved, put back, went on: the same adapter"
