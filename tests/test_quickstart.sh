#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# quickstart --cuda: its plan, and what tools/cuda-toolkit asks of pip, which is an imitation here: nothing is fetched.
. "${srcdir:=.}/tests/shell.sh"
command -v bash >/dev/null || { echo "SKIP: there is no bash"; exit 77; }
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "SKIP: the wheels are for Linux on x86-64"; exit 77; }

# no nvcc, whatever is installed here
mkdir tools-only
for t in bash sh env dirname sed uname mkdir nproc cat tail rm ln pwd; do
    p=$(command -v $t) && case $p in /*) ln -s "$p" tools-only/$t ;; esac
done
at=$(cd "$srcdir" && pwd)
expect 0 "fetch" env PATH="$PWD/tools-only" BUILD="$PWD/there" bash "$at/quickstart" --cuda plan
check "all wheels have a version" '[ $(grep -c "^fetch nvidia-[a-z0-9-]*==[0-9.]*$" out) -ge 9 ] &&
    [ $(grep -c "^fetch" out) = $(grep -c "^fetch nvidia-[a-z0-9-]*==[0-9.]*$" out) ]'
check "they go into the build folder" 'grep -q "^into $PWD/there/cuda$" out'
check "its nvcc is configured with" 'grep -q "^configure --with-cuda NVCC=$PWD/there/cuda/nvidia/cu13/bin/nvcc in $PWD/there$" out'
check "a plan does nothing" '[ ! -e there ]'
grep "^fetch" out | sort >planned

mkdir found
printf '#!/bin/sh\n' >found/nvcc
chmod +x found/nvcc
expect 0 "make all" env PATH="$PWD/found:$PWD/tools-only" BUILD="$PWD/there" bash "$at/quickstart" --cuda plan
check "nothing is fetched where there is one" '! grep -q "^fetch" out && grep -q "NVCC=$PWD/found/nvcc" out'
expect 2 "quickstart" env PATH="$PWD/tools-only" bash "$at/quickstart" --cuda now

# ---- the real thing, with a pip that only makes an nvcc ----
cat >python <<'END'
#!/bin/sh
echo "$*" >>"$CALLS"
case $3 in install) ;; *) exit 0 ;; esac
[ -z "${FAIL:-}" ] || exit 1
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/nvidia/cu13/bin" "$2/nvidia/cu13/lib"
printf '#!/bin/sh\necho imitation\n' >"$2/nvidia/cu13/bin/nvcc"
chmod +x "$2/nvidia/cu13/bin/nvcc"
END
chmod +x python
CALLS=$PWD/calls PYTHON=$PWD/python
export CALLS PYTHON
FAIL=1
export FAIL
expect 1 "" "$at/tools/cuda-toolkit" kit
unset FAIL
check "a failure is not taken for a toolkit" '[ ! -e kit/.complete ]'
expect 0 "nvcc" "$at/tools/cuda-toolkit" kit
check "it says where nvcc is" '[ "$(tail -1 out)" = "$PWD/kit/nvidia/cu13/bin/nvcc" ]'
check "nvcc finds its libraries" '[ -d kit/nvidia/cu13/lib64 ]'
check "pip is asked for what was planned" '[ "$(grep install calls | tail -1 | tr " " "\n" | grep == | sed "s/^/fetch /" | sort)" = "$(cat planned)" ]'
check "for nothing else, and from wheels" 'grep install calls | tail -1 | grep -q -- "--no-deps --only-binary :all: --target $PWD/kit "'
expect 0 "nvcc" "$at/tools/cuda-toolkit" kit
check "what is there is not fetched again" '[ $(grep -c install calls) = 2 ]'
totals
