#!/bin/sh
# check_symbols.sh BUILD: the libraries show what include/tessera.h declares and nothing else, and nothing in
# src/ but the program itself ends the process, prints, or touches signals, locale or working directory; and nothing at all
# starts a process or opens a connection, or runs when it is loaded. Nor do they need the libraries of GPUs, or CBC, to start.
set -eu
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Declarations start at the beginning of a line, in whatever way their arguments are broken.
grep -E '^TSR_API ' "$root/include/tessera.h" | sed -E 's/.*[ *](tsr_[a-z_]+)\(.*/\1/' | LC_ALL=C sort >"$scratch/declared"
[ "$(wc -l <"$scratch/declared")" -ge 10 ] || { echo "tessera.h declares hardly anything"; exit 1; }
nm -D --defined-only "$build/libtessera.so" | awk '$2 != "A" { print $NF }' | sed 's/@@TESSERA_0[.]2$//' | LC_ALL=C sort >"$scratch/shared"
nm -g --defined-only "$build/libtessera.a" | awk 'NF == 3 { print $3 }' | LC_ALL=C sort >"$scratch/static"
for kind in shared static; do
    diff -u "$scratch/declared" "$scratch/$kind" || { echo "the $kind library: other symbols than in tessera.h"; exit 1; }
done
forbidden='exit|_exit|quick_exit|abort|printf|vprintf|puts|putchar|perror|stdout|stderr|signal|sigaction|setlocale|chdir|fchdir|umask|MPI_Abort|__printf_chk'
outside='system|popen|v?fork|clone3?|exec[lv]p?e?|execveat|fexecve|posix_spawnp?|socket|socketpair|connect|bind|listen|accept4?|getaddrinfo|gethostbyname'
calls() {
    nm -A -u "$@" 2>/dev/null | awk '{ sub(/@.*/, "", $NF); print $1, $NF }' | grep -E " ($forbidden|$outside)\$" || true
}
echo 'void puts(const char *); void f(void); void f(void) { puts(""); }' >"$scratch/a.c"
cc -c -o "$scratch/a.o" "$scratch/a.c"
[ -n "$(calls "$scratch/a.o")" ] || { echo "self-test: puts is not found"; exit 1; }
set -- "$build"/src/*/libtsr_*.a
[ $# -ge 12 ] || { echo "only $# folders are built in $build"; exit 1; }
# But OpenBLAS' own, and what gives SIGINT back as it was before CBC took it.
found=$(calls "$@" | grep -vE ':openblas_dynamic[.]o: |:adapter_schedule_cbc[.]c[.]o: sigaction$' || true)
[ -z "$found" ] || { echo "$found"; echo "the library must not call these"; exit 1; }
# Nothing of the library runs when it is loaded, but what nvcc adds: it registers the kernels of a file.
starts() {
    for file in "$@"; do readelf -SW "$file"; done 2>/dev/null | awk '
        /^File: / { kernels = /[.]cu[.]o[)]$/ }
        !kernels && /[.](pre)?init_array|[.]fini_array|[.]ctors|[.]dtors/' || true
}
echo 'void f(void); __attribute__((constructor)) void f(void) { }' >"$scratch/b.c"
cc -c -o "$scratch/b.o" "$scratch/b.c"
[ -n "$(starts "$scratch/b.o")" ] || { echo "self-test: a constructor is not found"; exit 1; }
found=$(starts "$@")
[ -z "$found" ] || { echo "$found"; echo "the library has a constructor or destructor"; exit 1; }
object=$(find "$build/CMakeFiles/tessera.dir" -name 'main.c.o')
found=$(nm -u "$object" | awk '{ sub(/@.*/, "", $NF); print $NF }' | grep -E "^($outside)\$" || true)
[ -s "$object" ] || { echo "main.c's object is not there"; exit 1; }
[ -z "$found" ] || { echo "main.c calls: $found"; exit 1; }
# The program prints in two places, which escape what a terminal would obey: the one for answers, the one for the rest.
printing=$(grep -nE '\b(v?f?printf|f?puts|f?putc|putchar|fwrite|perror|write)\(' "$root/src/cli/main.c" || true)
[ "$(echo "$printing" | grep -c .)" -eq 2 ] || { echo "$printing"; echo "main.c prints without put()"; exit 1; }
# The libraries of GPUs, and CBC, are loaded when they are needed: the program starts where they are not. CBC's LAPACK would
# also meet our OpenBLAS.
needed=$(for file in "$build/tessera" "$build/libtessera.so"; do readelf -d "$file"; done | grep NEEDED)
[ "$(echo "$needed" | grep -c 'libc[.]so')" -eq 2 ] || { echo "readelf does not say what is needed"; exit 1; }
! echo "$needed" | grep -E 'libcu|libnccl|libnv|libCbc|libblas|liblapack|libopenblas' || { echo "the loader must not want these"; exit 1; }
echo "$(wc -l <"$scratch/declared") symbols, and no others; $# folders call nothing that is the program's"
