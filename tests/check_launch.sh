#!/bin/sh
# check_launch.sh: the parts of launch/ that depend on who runs it, what is installed and which machines there are, with
# made-up dpkg-query, apt-get, sudo, id and mpirun: when everything is there nothing is called, as root apt-get runs directly,
# as a plain user through sudo, and without sudo the user is told what to install.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/none"
fake() {
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/$1"
    chmod +x "$scratch/$1"
}
for tool in sh env cat find head mkdir; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
fake bin/dpkg-query 'for last; do :; done
case " $HAVE " in *" $last "*) echo "installed " ;; *) echo "no package $last" >&2; exit 1 ;; esac'
fake bin/apt-get 'echo "apt-get $*" >>"$LOG"; [ -z "${OFFLINE-}" ]'
fake bin/id 'echo "$WHO"'

# try STATUS WHO "HAVE" PATTERN...: packages_ensure a b exits with STATUS; the log and what is printed hold each
# PATTERN, and with !PATTERN do not.
try() {
    expected=$1 who=$2 have=$3
    shift 3
    : >"$scratch/log"
    status=0
    PATH="$scratch/bin" WHO=$who HAVE=$have LOG="$scratch/log" OFFLINE=${OFFLINE-} root=$top \
        sh -c '. "$root/launch/packages.sh"; packages_ensure a b' </dev/null >>"$scratch/log" 2>&1 || status=$?
    bad=
    [ "$status" -eq "$expected" ] || bad="status $status, expected $expected"
    for pattern in "$@"; do
        case $pattern in
        !*) if grep -qF "${pattern#!}" "$scratch/log"; then bad="says ${pattern#!}"; fi ;;
        *) grep -qF "$pattern" "$scratch/log" || bad="does not say $pattern" ;;
        esac
    done
    [ -z "$bad" ] || { echo "packages_ensure as $who with '$have': $bad"; cat "$scratch/log"; exit 1; }
}
fake bin/true :
try 0 0 "a b" "all 2 packages are installed" "!apt-get"
try 0 1000 "a b" "all 2 packages are installed" "!apt-get"
try 0 0 "a" "installing: b" "apt-get update" "apt-get install -q -y --no-install-recommends b" "!recommends a"
try 1 1000 "b" "only root can install" "apt-get install --no-install-recommends a" "!apt-get update"
OFFLINE=1 try 1 0 "" "apt-get could not install: a b" "is there a network"
fake bin/sudo 'echo "sudo $*" >>"$LOG"; [ "$1" = -n ] && shift; exec "$@"'
try 0 1000 "a" "sudo -n true" "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install" "apt-get update"
fake bin/sudo 'echo "a password is required" >&2; exit 1'
try 1 1000 "a" "only root can install" "!apt-get update"
rm "$scratch/bin/dpkg-query"
try 0 1000 "" "no Debian" "!apt-get"

# place: in the tree where it can be written, elsewhere where a part belongs to somebody else.
where() {
    root=$scratch/tree TMPDIR=/elsewhere sh -c '. "$1/launch/packages.sh"; place build' - "$top"
}
mkdir -p "$scratch/tree/build/sub"
[ "$(where)" = "$scratch/tree/build" ] || { echo "place: $(where)"; exit 1; }
if [ "$(id -u)" -ne 0 ]; then
    chmod a-w "$scratch/tree/build/sub"
    [ "$(where)" = "/elsewhere/tessera-$(id -u)/build" ] || { echo "place: $(where)"; exit 1; }
fi

# run: with a made-up mpirun. Which ways it uses depends on the machines that are named.
mkdir "$scratch/mpi"
fake mpi/mpirun :
fake program :
: >"$scratch/tessera_loopback.so"
echo 'localhost slots=4 # these' >"$scratch/here"
echo 'node7 slots=4' >"$scratch/there"
# network WAY "NAME=VALUE..." OPTION...: WAY is loopback or all
network() {
    way=$1 environment=$2
    shift 2
    # shellcheck disable=SC2086
    line=$(env -u PBS_NODEFILE -u PE_HOSTFILE -u SLURM_JOB_NUM_NODES -u LSB_JOBID OMPI_MCA_orte_default_hostfile=/dev/null \
        $environment "PATH=$scratch/mpi:$PATH" "$top/launch/run" -n 2 -o "$*" "$scratch/program" 2>&1)
    case $line in
    "+ env LD_PRELOAD=$scratch/tessera_loopback.so"*" --mca btl self,vader --mca oob_tcp_if_include lo"*) found=loopback ;;
    "+ mpirun "*" --mca btl self,vader,tcp "*) found=all ;;
    *) found="neither" ;;
    esac
    [ $found = "$way" ] || { echo "launch/run with '$environment' and '$*' uses $found, expected $way: $line"; exit 1; }
}
network loopback ""
network loopback "" --tag-output -x PYTHONHASHSEED -wdir /tmp
network loopback "" -H "localhost:2,$(uname -n)"
network loopback "" --hostfile "$scratch/here"
network loopback "SLURM_JOB_NUM_NODES=1 PBS_NODEFILE=$scratch/here"
network all "" -H localhost,node7:2
network all "" --host node7
network all "" --hostfile "$scratch/there"
network all "" --hostfile "$scratch/none"
network all "" --rankfile "$scratch/here"
network all "OMPI_MCA_orte_default_hostfile=$scratch/there"
network all "SLURM_JOB_NUM_NODES=2"
network all "PE_HOSTFILE=$scratch/there"
network all "LSB_JOBID=7"

for script in "$top"/launch/*; do
    case $(head -n 1 "$script") in
    "/*") ;; # C
    *bash*) bash -n "$script" ;;
    *) sh -n "$script" ;;
    esac
done
echo "launch/ asks for what is missing, and for nothing else; it uses the network for other machines alone"
