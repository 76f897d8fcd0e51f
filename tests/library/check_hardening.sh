#!/bin/sh
# check_hardening.sh BUILD CC: what a bug in the program or the library meets. Both are position independent, their tables are
# read-only once they run, no memory can be written and executed, functions with buffers have canaries, copies are checked
# where their size is known, and libraries are looked for at absolute paths alone.
set -eu
build=$1
cc=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# wrong FILE: what is missing in an executable or a library.
wrong() {
    readelf -hldW "$1" >"$scratch/elf"
    grep -q 'Type:.* DYN ' "$scratch/elf" || echo "it is not position independent"
    grep -q ' GNU_RELRO ' "$scratch/elf" && grep -qE '\((FLAGS|FLAGS_1)\).*\b(BIND_)?NOW\b' "$scratch/elf" ||
        echo "its tables can be written (RELRO, NOW)"
    grep -q ' GNU_STACK ' "$scratch/elf" || echo "it does not say what its stack may do"
    awk '$1 ~ /^(LOAD|GNU_STACK)$/ && / RWE /' "$scratch/elf" | sed 's/^ */memory that can be written and executed: /'
    ! grep -q TEXTREL "$scratch/elf" || echo "its code is changed when it is loaded"
    sed -n 's/.*(R[UN]*PATH).*\[\(.*\)\]/\1/p' "$scratch/elf" | tr : '\n' | grep -v '^/' | sed 's/.*/a run path that is not absolute: "&"/'
}
# unguarded ARCHIVE: what is missing in its objects.
unguarded() {
    nm -u "$1" >"$scratch/names" 2>/dev/null
    grep -q ' __stack_chk_fail' "$scratch/names" || echo "no function has a canary"
    grep -qE ' __[a-z0-9_]+_chk$' "$scratch/names" || echo "no copy is checked"
    case $(uname -m) in
    x86_64) # CET: jumps and returns can be checked; of the whole program not, as OpenBLAS's objects are not built so
        objects=$(ar t "$1" | grep -vc '\.cu\.o$' || true)
        marked=$(readelf -nW "$1" 2>/dev/null | grep -c 'IBT, SHSTK' || true)
        [ "$marked" -ge "$objects" ] || echo "$marked of $objects objects are built with CET"
        ;;
    esac
}

echo 'int main(void) { return 0; }' >"$scratch/plain.c"
"$cc" "$scratch/plain.c" -o "$scratch/plain" -no-pie -Wl,-z,norelro,-z,lazy,-z,execstack,-rpath,/fine:
complaints=$(wrong "$scratch/plain" 2>/dev/null | wc -l)
[ "$complaints" -eq 4 ] || { wrong "$scratch/plain"; echo "self-test: $complaints complaints about a plain program, expected 4"; exit 1; }

bad=0
for file in tessera libtessera.so; do
    found=$(wrong "$build/$file")
    [ -z "$found" ] || { printf '%s\n' "$found" | sed "s/^/$file: /"; bad=1; }
done
for folder in base io data config; do # what reads files
    found=$(unguarded "$build/src/$folder/libtsr_$folder.a")
    [ -z "$found" ] || { printf '%s\n' "$found" | sed "s/^/$folder: /"; bad=1; }
done
[ $bad -eq 0 ] || exit 1
echo "hardened: tessera, libtessera.so"
