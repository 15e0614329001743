#!/bin/bash
# Builds from a clean tree on a machine with an NVIDIA GPU, and without a network if need be, runs the tests of
# the GPU, the demo model in every weight format, and the benchmark; the table comes last.
#
#   tools/gpu_check.sh --pack           where the Debian packages are: copies what a build needs of them, and
#                                       the goldens that are not in the repository, to third_party/ (ignored
#                                       by git), to travel with the tree
#   tools/gpu_check.sh [--out DIR] [--quick] [--built DIR]   on the machine with the GPU. Logs go to DIR
#                                       (build/gpu-check). --quick: no tests of the demo beyond bf16, and a
#                                       short benchmark. --built: DIR has dgemma and test_cuda, and perhaps
#                                       shared libraries; nothing is built
#
# Needs CMake, Ninja, a C++20 compiler, nvcc (on the PATH, in CUDA_HOME or /usr/local/cuda) and python3.
set -u
cd "$(dirname "$0")/.." || exit 1
prefix=third_party/prefix
out=build/gpu-check
quick=no
while [ $# -gt 0 ]; do
    case "$1" in
        --pack) pack=yes ;;
        --quick) quick=yes ;;
        --out) shift; out="$1" ;;
        --built) shift; built="$1" ;;
        *) echo "gpu_check.sh: there is no option $1" >&2; exit 2 ;;
    esac
    shift
done

if [ "${pack:-no}" = yes ]; then
    set -e
    rm -rf "$prefix" third_party/shared
    lib=usr/lib/x86_64-linux-gnu
    mkdir -p "$prefix/usr/include" "$prefix/$lib/cmake" "$prefix/usr/share/cmake"
    cp -r /usr/include/{event2,fmt,nlohmann,gtest,simdjson.h,utf8proc.h,zlib.h,zconf.h} "$prefix/usr/include/"
    [ -d /usr/include/gmock ] && cp -r /usr/include/gmock "$prefix/usr/include/"
    cp -a /$lib/{libevent_core.a,libevent_pthreads.a,libfmt.so*,libsimdjson.so*,libutf8proc.a,libz.a,libgtest*.a,libgmock*.a} "$prefix/$lib/"
    cp -r /$lib/cmake/{fmt,simdjson,GTest} "$prefix/$lib/cmake/"
    cp -r /usr/share/cmake/nlohmann_json "$prefix/usr/share/cmake/"
    strip --strip-debug "$prefix/$lib"/*.a "$prefix/$lib"/*.so* 2>/dev/null || true
    shared="${DGEMMA_SHARED:-../shared}"
    for golden in text-bf16-sharded demo-traces; do
        [ -d "$shared/goldens/hf/$golden" ] || continue
        mkdir -p third_party/shared/goldens/hf
        cp -r "$shared/goldens/hf/$golden" third_party/shared/goldens/hf/
    done
    rm -f third_party/shared/goldens/hf/demo-traces/f32.*  # the repository has them
    du -sh third_party
    exit 0
fi

mkdir -p "$out" || exit 1
out="$(cd "$out" && pwd)"
table="$out/table.txt"
: > "$table"
say() { printf '%s\n' "$*" | tee -a "$table"; }
failed=0

# --- build
if [ -n "${built:-}" ]; then
    built="$(cd "$built" && pwd)" || exit 1
    export LD_LIBRARY_PATH="$built:${LD_LIBRARY_PATH:-}"
    dgemma="$built/dgemma" tests="$built/test_cuda"
else
    build="$out/build"
    rm -rf "$build"
    # Warnings of a compiler that we have not seen are no reason to stop.
    options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DDGEMMA_CUDA=ON -DDGEMMA_WERROR=OFF)
    [ -d "$prefix/usr" ] && options+=("-DCMAKE_PREFIX_PATH=$PWD/$prefix/usr")
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)"
    # Hopper's own kernels and, so that the generic ones are judged too, those of 8.0.
    [ "$capability" = 9.0 ] && options+=("-DDGEMMA_CUDA_ARCHITECTURES=90a")
    start=$SECONDS
    if ! cmake -S . -B "$build" "${options[@]}" > "$out/cmake.log" 2>&1 ||
        ! cmake --build "$build" --target dgemma test_cuda > "$out/build.log" 2>&1; then
        say "build                FAILED: see $out/cmake.log and $out/build.log"
        grep -hE "error|Error|FAILED" "$out/cmake.log" "$out/build.log" | head -n 10
        exit 1
    fi
    say "build                ok, $((SECONDS - start)) s"
    dgemma="$build/src/dgemma" tests="$build/tests/test_cuda"
fi
"$dgemma" doctor -m models/demo --device cuda > "$out/doctor.log" 2>&1 || failed=1
say "gpu                  $(grep -m 1 '^ok *gpu' "$out/doctor.log" | cut -c 20-)"

# --- tests, in shards side by side
[ -d third_party/shared ] && export DGEMMA_SHARED="$PWD/third_party/shared"
start=$SECONDS
shards=$(($(nproc) < 14 ? $(nproc) : 14))
for ((i = 0; i < shards; ++i)); do
    (cd "$out" && GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout 300 "$tests" \
        > "$out/test$i.log" 2>&1; echo "exit $?" >> "$out/test$i.log") &
done
wait
passed=$(cat "$out"/test*.log | grep -c '^\[       OK')
skipped=$(cat "$out"/test*.log | grep -cE '^\[  SKIPPED \].*ms\)')
bad=$(cat "$out"/test*.log | grep -cE '^\[  FAILED  \].*ms\)')
ends=$(cat "$out"/test*.log | grep -c '^exit 0')
[ "$bad" = 0 ] && [ "$ends" = "$shards" ] || failed=1
say "device tests         $passed passed, $bad failed, $skipped skipped, $ends of $shards processes ended well, $((SECONDS - start)) s"
cat "$out"/test*.log | grep -E '^\[  FAILED  \].*ms\)' | head -n 20

# --- the demo model: right answers on the exact rows, of the CPU and of the GPU in every format
evaluate() { # name, model, options...
    local name="$1" model="$2"
    shift 2
    timeout 300 "$dgemma" eval -m "$model" --cases tests/data/demo-cases/text.jsonl --exact-only --json "$@" \
        > "$out/eval-$name.log" 2>&1 || failed=1
    say "demo $(printf %-15s "$name") $(python3 - "$out/eval-$name.log" <<'PY'
import json, sys
lines = [line for line in open(sys.argv[1]) if line.startswith("{")]
if not lines:
    print("no result:", open(sys.argv[1]).read().strip().splitlines()[-1:])
else:
    r = json.loads(lines[-1])
    keep = ["rows", "right", "accuracy", "empty", "steps_per_block", "seconds", "wall_s"]
    print(", ".join(f"{k} {r[k]:.4g}" if isinstance(r[k], float) else f"{k} {r[k]}" for k in keep if k in r) or r)
PY
)"
}
evaluate cpu models/demo --device cpu
evaluate cuda-bf16 models/demo --device cuda
evaluate cuda-f32 models/demo --device cuda --precision f32
if [ "$quick" = no ]; then
    for profile in q8 q4 fp8 nvfp4; do
        "$dgemma" quantize -m models/demo --profile $profile -o "$out/demo-$profile" --force > "$out/quantize-$profile.log" 2>&1
        evaluate cuda-$profile "$out/demo-$profile" --device cuda
    done
fi

# --- two layers of the real shapes, random weights: the GPU must not be further from what the CPU computes in
# f32 than the CPU is where it rounds to bf16 as the GPU does, give or take a half (a random network magnifies
# every rounding, so that no fixed bound would say anything). Of fp8 with weights alone in E4M3: what rounding
# activations does, the tests E4m3* judge by an oracle that rounds alike.
real_shapes() { # format
    local options=()
    [ "$1" = fp8 ] && options=(--precision bf16)
    local model="$out/two-layers-$1" where
    "$dgemma" synth --preset 26b --layers 2 --logits peaked --format "$1" -o "$model" --force > "$out/synth-$1.log" 2>&1
    timeout 300 "$dgemma" verify -m "$model" --layers 2 --device cuda "${options[@]}" --json > "$out/verify-$1.json" 2> "$out/verify-$1.log"
    [ "$1" = bf16 ] && timeout 300 "$dgemma" verify -m "$model" --layers 2 --device cpu --precision bf16 --json > "$out/verify-cpu.json" 2> "$out/verify-cpu.log"
    rm -rf "$model"
    say "real shapes $(printf %-8s "$1") $(python3 - "$out/verify-$1.json" "$out/verify-cpu.json" <<'PY'
import json, sys
try:
    gpu, cpu = (json.load(open(name)) for name in sys.argv[1:])
except (OSError, ValueError) as problem:
    print(f"FAILED: {problem}")
    sys.exit()
words, good = [], gpu["device"] == "cuda" and not any(s["not_finite"] for s in gpu["stages"])
for g, c in zip(gpu["head"], cpu["head"]):
    wrong = [1 - one["argmax_agreement"] for one in (g, c)]
    good &= wrong[0] <= 1.5 * wrong[1] and g["mean_kl"] <= 1.5 * c["mean_kl"]
    words.append(f"{g['pass']}: argmax {1 - wrong[0]:.3f} (CPU {1 - wrong[1]:.3f}), KL {g['mean_kl']:.4f} ({c['mean_kl']:.4f}), "
                 f"entropy {g['largest_entropy_difference']:.2f} ({c['largest_entropy_difference']:.2f})")
print(("" if good else "FAILED: ") + "; ".join(words))
PY
)"
    tail -n 1 "$table" | grep -q FAILED && failed=1
}
real_shapes bf16
if [ "$quick" = no ]; then
    for format in q8 q4 fp8 nvfp4; do real_shapes $format; done
fi

# --- the benchmark
bench() {
    local name="$1"
    shift
    timeout 300 "$dgemma" bench --preset 26b --device cuda --json "$@" > "$out/bench-$name.log" 2>&1 || failed=1
    say "bench $(printf %-14s "$name") $(python3 - "$out/bench-$name.log" <<'PY'
import json, sys
lines = [line for line in open(sys.argv[1]) if line.startswith("{")]
if not lines:
    print("no result:", open(sys.argv[1]).read().strip().splitlines()[-1:])
else:
    r = json.loads(lines[-1])
    whole = r["prefill_s"] + sum(r["steps_ms"]) / 1000
    print(f"step {r['step_ms']:.2f} ms, prefill {r['prefill_tokens_per_s']:.0f} tokens/s; prefill and {len(r['steps_ms'])} steps {1000 * whole:.0f} ms: "
          f"{256 / whole:.0f} tokens/s of one canvas")
PY
)"
}
formats="bf16 q8 q4 fp8 nvfp4"
[ "$quick" = yes ] && formats="bf16 q4"
bench q4-16-steps --format q4 --context 128 --steps 16
for format in $formats; do bench "$format-1k" --format "$format" --context 1024 --steps 32; done
if [ "$quick" = no ]; then
    bench bf16-8k --format bf16 --context 8192 --steps 8
    bench bf16-32k --format bf16 --context 32768 --steps 8
    bench q4-32k --format q4 --context 32768 --steps 8
    bench bf16-1k-x16 --format bf16 --context 1024 --batch 16 --steps 4
fi
echo
cat "$table"
exit $failed
