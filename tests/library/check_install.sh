#!/bin/sh
# check_install.sh BUILD CC CXX: what `cmake --install` puts somewhere is enough to build and run examples/embed.c, by
# pkg-config and by find_package, with the shared library and with the archive; from C11 and from C++17; and it
# can be moved.
set -eu
build=$1 cc=$2 cxx=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/first" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tessera.pc)")
export PKG_CONFIG_PATH
libraries=$(realpath "$(pkg-config --variable=libdir tessera)")

"$prefix/bin/tessera" --version
for file in "$prefix/bin/tessera" "$libraries/libtessera.so"; do
    if readelf -dW "$file" | grep -E 'R(UN)?PATH'; then
        echo "$file: what is installed looks for libraries where the loader does"
        exit 1
    fi
done
[ -s "$prefix/libexec/tessera_loopback.so" ] || { echo "launch/run would not find its tessera_loopback.so"; exit 1; }

for file in man/man1/tessera.1 man/man1/tessera-train.1 man/man5/tessera-job.5 bash-completion/completions/tessera \
    zsh/site-functions/_tessera fish/vendor_completions.d/tessera.fish; do
    [ -s "$prefix/share/$file" ] || { echo "share/$file is not installed"; exit 1; }
done

# shellcheck disable=SC2046
"$cc" -std=c11 -Wall -Wextra -Werror "$root/examples/embed.c" -o "$scratch/embed_pkg_config" \
    $(pkg-config --cflags --libs tessera) "-Wl,-rpath,$libraries"
printf '#include <tessera.h>\nint main() { tsr_job_options o = TSR_JOB_OPTIONS_INIT; return o.use_mpi; }\n' >"$scratch/plus.cpp"
# shellcheck disable=SC2046
"$cxx" -std=c++17 -Wall -Wextra -Werror "$scratch/plus.cpp" -o "$scratch/plus" $(pkg-config --cflags --libs tessera)

mkdir "$scratch/project"
cat >"$scratch/project/CMakeLists.txt" <<PROJECT
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(tessera 0.2 REQUIRED)
add_executable(embed_shared $root/examples/embed.c)
target_link_libraries(embed_shared PRIVATE tessera::tessera)
add_executable(embed_archive $root/examples/embed.c)
target_link_libraries(embed_archive PRIVATE tessera::tessera_static)
PROJECT
if ! { cmake -G Ninja -S "$scratch/project" -B "$scratch" "-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_C_COMPILER=$cc" &&
    ninja -C "$scratch"; } >"$scratch/log" 2>&1; then
    cat "$scratch/log"
    exit 1
fi

for program in embed_pkg_config embed_shared; do
    ldd "$scratch/$program" | grep -q "$libraries/libtessera.so" || { echo "$program runs another library"; exit 1; }
done
for program in embed_shared embed_archive; do
    "$scratch/$program" "$root/examples/tiny-llama" "$root/examples/data/gsm8k_train.jsonl" \
        "$root/examples/data/gsm8k_eval.jsonl" "$scratch/adapters-of-$program" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log"; echo "FAILED: $program"; exit 1; }
    for adapter in dora lora; do
        cmp "$scratch/adapters-of-$program/$adapter/adapter_model.safetensors" \
            "$scratch/adapters-of-embed_shared/$adapter/adapter_model.safetensors"
    done
done
echo "installed, moved, and used in four ways"
