#!/bin/sh
# check_kernels.sh [ROOT]: every CUDA kernel of ROOT begins as src/kernels/cuda.cuh says, is launched as that
# says, and reads nothing in a way that takes memory for constant.
#
# check_kernels.sh CUOBJDUMP OBJECT: the same of the machine code for sm_90 and later: each kernel waits
# for the one before it before anything else (one that is named "..._ahead" before it writes or ends), whatever
# the compiler moved. 77: no CUOBJDUMP, or no such code.
set -eu

# ---- sources ----

# Prints what is wrong in the kernels of tree $1.
wrong_sources() {
    (
        cd "$1"
        files=$(find src/kernels -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
        printf '%s\n' "$files" | xargs awk '
            FNR == 1 { kernel = 0 }
            # From __global__ to the line that is the brace; then a line.
            /__global__/ { kernel = 1; ahead = 0; name = FILENAME ":" FNR }
            kernel == 2 {
                if ($0 !~ /^ +tsr_kernel_begin\(\);/ && !ahead) print name ": a kernel that does not call tsr_kernel_begin first"
                kernel = ahead ? 3 : 0
            }
            kernel == 3 && /^ +tsr_kernel_begin\(\);/ { kernel = 0 }
            kernel == 3 && /^}/ { print name ": a kernel that never calls tsr_kernel_begin"; kernel = 0 }
            kernel == 1 && /_ahead\(/ { ahead = 1 }
            kernel == 1 && /^ *\{[ \\]*$/ { kernel = 2 }
            kernel == 1 && /[{;]./ { print name ": where this kernel begins is not to be seen"; kernel = 0 }'
        printf '%s\n' "$files" | xargs grep -nE '<<<|cudaLaunchKernel|__ldg *\(|ld\.global\.nc|__restrict__' /dev/null |
            grep -vE '^src/kernels/cuda\.cuh:[0-9]*:( \*|/\*|        \(void\)cudaLaunchKernelEx)' |
            sed 's/$/ -- TSR_LAUNCH alone launches, and no kernel takes memory for constant/' || true
    )
}

check_sources() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch/src/kernels"
    cat >"$scratch/src/kernels/bad.cu" <<'END'
static __global__ void late(int *p)
{
    int i = *p;
    tsr_kernel_begin();
}
#define KERNEL(name)                \
    static __global__ void name(    \
        int *p)                     \
    {                               \
        *p = 1;                     \
    }
static __global__ void never_ahead(int *p)
{
    *p = 1;
}
static __global__ void short_one(void) { tsr_kernel_begin(); }
    late<<<1, 1>>>(p);
    int a = __ldg(p);
END
    cat >"$scratch/src/kernels/good.cu" <<'END'
static __global__ void good(const int *p)
{
    tsr_kernel_begin();
    if (*p)
        return;
}
static __global__ void good_ahead(const int *p)
{
    int i = *p;
    tsr_kernel_begin();
}
END
    if [ "$(wrong_sources "$scratch" | wc -l)" -ne 6 ]; then
        echo "self-test: expected six complaints, found:"
        wrong_sources "$scratch"
        exit 1
    fi
    found=$(wrong_sources "$1")
    [ -z "$found" ] || { printf '%s\n' "$found"; exit 1; }
    echo "$(cat "$1"/src/kernels/*.cu "$1"/src/kernels/*.cuh | grep -c '^ *tsr_kernel_begin();') places begin kernels, all of them first"
}

# ---- machine code ----

# Reads cuobjdump -sass; prints a line for each kernel that is wrong, and how many there are last.
wrong_code() {
    awk '
        function finish() {
            if (kernel == "") return
            count++
            if (!waits) print kernel ": does not wait for the kernel before it"
        }
        /^[ \t]*(code for|arch =) sm_/ {
            finish(); kernel = ""
            arch = $0; sub(/.*sm_/, "", arch); arch += 0
        }
        /^[ \t]*Function : / { finish(); kernel = arch >= 90 ? $3 : ""; waits = early = 0
            before = kernel ~ /[0-9][a-z_0-9]*_ahead/ ? "^(ST|ATOM|RED|CCTL|UBLK|UTMA|CALL|RET|EXIT)" : \
                "^(LD|ST|ATOM|RED|CCTL|UBLK|UTMA|BRA|BRX|JMP|CALL|RET|EXIT)" }
        kernel != "" && /^[ \t]*\/\*[0-9a-f]+\*\/ / {
            line = $0
            sub(/^[ \t]*\/\*[0-9a-f]+\*\/[ \t]*/, "", line)
            if (line ~ /^ACQBULK/) waits = 1
            sub(/ *;.*/, "", line)
            sub(/^@!?U?P[T0-9]+[ \t]+/, "", line)
            if (!waits && !early && line ~ before &&
                line !~ /^(LDC|LDS|STS|LDL|STL)/) {
                print kernel ": " line " before it waits"
                early = 1
            }
            if (line ~ /\.CONSTANT/) print kernel ": " line " takes memory for constant"
        }
        END { finish(); print count + 0 }'
}

check_code() {
    [ -x "$1" ] || { echo "no cuobjdump here: skipped"; exit 77; }
    PATH=$(dirname "$1"):$PATH # beside it nvdisasm
    made_up='code for sm_80
Function : old
 /*0000*/ LDG.E R1, [R2] ;
code for sm_90a
Function : late
 /*0000*/ LDC R1, c[0x0][0x28] ;
 /*0010*/ @!P0 LDG.E R1, [R2] ;
 /*0020*/ ACQBULK ;
Function : never
 /*0000*/ STG.E [R2], R1 ;
Function : sometimes
 /*0000*/ @P0 ACQBULK ;
 /*0010*/ EXIT ;
Function : constant
 /*0000*/ ACQBULK ;
 /*0010*/ LDG.E.CONSTANT R1, [R2] ;
Function : _Z10late_aheadPi
 /*0000*/ LDG.E R1, [R2] ;
 /*0010*/ STG.E [R2], R1 ;
 /*0020*/ ACQBULK ;
Function : _Z10good_aheadPi
 /*0000*/ LDG.E R1, [R2] ;
 /*0010*/ ACQBULK ;
Function : good
 /*0000*/ PREEXIT ;
 /*0010*/ ACQBULK ;
 /*0020*/ LDG.E R1, [R2] ;'
    if [ "$(printf '%s\n' "$made_up" | wrong_code | wc -l)" -ne 8 ]; then
        echo "self-test: expected seven complaints and a count, found:"
        printf '%s\n' "$made_up" | wrong_code
        exit 1
    fi
    code=$("$1" -sass "$2" 2>/dev/null) || { echo "$1 cannot read $2"; exit 1; }
    found=$(printf '%s\n' "$code" | wrong_code)
    count=$(printf '%s\n' "$found" | tail -n 1)
    [ "$count" -gt 0 ] || { echo "no code for sm_90 or later in $2: skipped"; exit 77; }
    [ "$found" = "$count" ] || { printf '%s\n' "$found" | sed '$d'; exit 1; }
    echo "$count kernels wait for the one before them before anything else"
}

if [ $# -gt 1 ]; then
    check_code "$1" "$2"
else
    check_sources "${1:-$(cd "$(dirname "$0")/.." && pwd)}"
fi
