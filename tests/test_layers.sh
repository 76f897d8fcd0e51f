#!/bin/sh
# test_layers.sh [ROOT]: includes go strictly downward. Folders of one level never include each other,
# and an external library is included only where it is wrapped. First the check is shown able to fail,
# on small made-up trees; then ROOT (this tree) is checked.
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}

# Prints one line for each include of tree $1 that breaks a rule.
violations() {
    (cd "$1" && find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort | xargs grep -nE '^[ 	]*#[ 	]*include' /dev/null) |
        awk -F: '
    BEGIN {
        split("base=0 device=1 kernels=2 comm=2 io=2 quant=3 shard=3 adapters=3 optim=3 table=3 tokenizer=3 jinja=3 " \
              "data=4 config=4 model=4 inputs=5 planner=6 report=6 job=7 commands=8 cli=9", pair, " ")
        for (i in pair) { split(pair[i], kv, "="); level[kv[1]] = kv[2] }
        only["mpi.h"] = "^src/comm/mpi_parts[.]h$"
        only["hwloc.h"] = "^src/device/topology[.]c$"
        only["cuda_runtime_api.h"] = "^src/device/|^src/comm/comm_nccl|^src/comm/nccl_parts|^src/kernels/"
        only["nvToolsExt.h"] = "^src/device/range[.]c$"
        only["nccl.h"] = "^src/comm/nccl_library[.]h$"
        only["cublasLt.h"] = "^src/kernels/cublaslt_library[.]h$"
        only["cudnn.h"] = "^src/kernels/cudnn_library[.]h$"
        only["dlfcn.h"] = "^src/base/library[.]c$"
        only["cblas.h"] = "^src/kernels/gemm[a-z_]*[.][ch]$"
        only["yaml.h"] = "^src/config/yaml[.]c$"
        only["oniguruma.h"] = "^src/base/regex[.]c$"
        only["utf8proc.h"] = "^src/base/unicode[.]c$"
        only["zlib.h"] = "^src/table/"
        only["zstd.h"] = "^src/table/"
        only["Cbc_C_Interface.h"] = "^src/data/adapter_schedule_cbc[.]c$"
        only["jansson.h"] = "^src/(io|table|tokenizer|jinja|data|model/arch|planner|report)/"
    }
    function bad(what) { print $1 ":" $2 ": " what }
    {
        depth = split($1, path, "/"); from = path[2]
        header = $3; for (i = 4; i <= NF; i++) header = header ":" $i
        if (match(header, /<[^>]*>/)) {
            name = substr(header, RSTART + 1, RLENGTH - 2)
            for (h in only)
                if ((name == h || name ~ ("(^|/)" h "$")) && $1 !~ only[h])
                    bad("<" name "> belongs to files that match " only[h])
            next
        }
        if (!match(header, /"[^"]*"/)) { bad("an include that is neither <file> nor \"folder/file\""); next }
        name = substr(header, RSTART + 1, RLENGTH - 2)
        if (name == "tessera_status.h") next # what every call returns, inside too
        if (name ~ /^tessera[a-z_]*[.]h$/) {
            if (level[from] + 0 < level["report"] + 0 && depth > 2) bad("\"" name "\", the public header, from below src/report")
            next
        }
        count = split(name, parts, "/"); to = parts[1]
        if (to == "model" && count == 3 && parts[2] == "arch") count = 2
        if (count != 2 || !(to in level)) { bad("\"" name "\": expected \"folder/file.h\" of a known folder"); next }
        if (depth == 2) next # src/main.c and the like stand above all folders
        if (!(from in level)) { bad("src/" from " has no level in tests/test_layers.sh"); next }
        if (to != from && level[to] + 0 >= level[from] + 0)
            bad("\"" name "\": src/" from " (level " level[from] ") must not include src/" to " (level " level[to] ")")
    }'
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# try EXPECTED FILE LINE...: a tree of one file must give EXPECTED violations.
try() {
    expected=$1 file=$2
    shift 2
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree/src/base" "$scratch/tree/$(dirname "$file")"
    : >"$scratch/tree/src/base/a.c"
    printf '%s\n' "$@" >"$scratch/tree/$file"
    found=$(violations "$scratch/tree" | wc -l)
    if [ "$found" -ne "$expected" ]; then
        echo "self-test: $file with $* gave $found violations, expected $expected" >&2
        violations "$scratch/tree" >&2
        exit 1
    fi
}
try 0 src/data/a.c '#include "data/b.h"' '#include "io/json.h"' '#include "base/status.h"' '#include <stdio.h>'
try 0 src/report/a.c '#include "tessera.h"' '#include "model/b.h"' '#include "config/keys.h"' '#include <jansson.h>'
try 0 src/main.c '#include "tessera.h"' '#include "config/config.h"'
try 0 src/config/yaml.c '#include <yaml.h>'
try 0 src/comm/mpi_parts.h '#include <mpi.h>'
try 0 src/kernels/gemm_ref.c '#include <cblas.h>'
try 0 src/commands/a.c '#include "tessera.h"' '#include "inputs/inputs.h"'
try 1 src/job/a.c '#include "commands/convert.h"'
try 1 src/planner/a.c '#include "report/report.h"'
try 1 src/base/b.c '#include "io/json.h"'
try 1 src/io/a.c '#include "comm/comm.h"'
try 1 src/data/a.c '#include "model/layer.h"'
try 1 src/model/a.c '#include "config/config.h"'
try 1 src/model/a.c '# include "inputs/inputs.h" // why'
try 2 src/kernels/a.c '#include <mpi.h>' '#include <cblas.h>'
try 1 src/comm/comm.c '#include <openmpi/mpi.h>'
try 1 src/device/device_cpu.c '#include <hwloc.h>'
try 1 src/job/a.c '#include <yaml.h>'
try 1 src/tokenizer/a.c '#include <oniguruma.h>'
try 0 src/table/a.c '#include <zstd.h>' '#include "io/json.h"'
try 0 src/data/adapter_schedule_cbc.c '#include <Cbc_C_Interface.h>'
try 1 src/data/pack.c '#include <Cbc_C_Interface.h>'
try 1 src/io/a.c '#include <zlib.h>'
try 1 src/comm/a.c '#include <jansson.h>'
try 1 src/data/a.c '#include "b.h"'
try 1 src/data/a.c '#include "../base/status.h"'
try 0 src/base/a.c '#include "tessera_status.h"'
try 1 src/model/a.c '#include "tessera.h"'
try 1 src/odd/a.c '#include "base/status.h"'
try 1 src/device/cuda/a.cu '#include "kernels/gemm.h"'
try 1 src/data/a.c '#include HEADER'

found=$(violations "$root")
if [ -n "$found" ]; then
    printf '%s\n' "$found"
    echo "$(printf '%s\n' "$found" | wc -l) includes break the layers (src/CMakeLists.txt lists them from the lowest)"
    exit 1
fi
echo "$(find "$root/src" -name '*.[ch]' | wc -l) files, every include goes downward"
