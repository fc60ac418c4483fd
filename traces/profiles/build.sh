#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Rebuilds a100.sql, a800.sql and h100.sql from published tables: import, fit, resample.
#   build.sh DISTTRAIN DATA OUTDIR
# DATA holds the tables as folders (aiconfigurator, vidur, simumax, neusight, triosim); the same
# tables always give the same bytes.
# With ONLY=import OUTDIR gets the imported rows, measured.db, and nothing is fitted.
set -eu
LC_ALL=C
export LC_ALL

[ $# -eq 3 ] || { echo "usage: $0 DISTTRAIN DATA OUTDIR" >&2; exit 2; }
disttrain=$1 data=$2 out=$3
[ -d "$data/aiconfigurator" ] || { echo "$0: no tables in $data" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
db=$tmp/measured.db

A100=A100-SXM4-80GB
H100=H100-SXM5-80GB
PCIE=A100-PCIe-80GB

# FAMILY FILE DEVICE SOURCE [OPTION...]; origin, licence and date come from $origin, $licence, $date
import() {
    family=$1 file=$2 device=$3 source=$4
    shift 4
    "$disttrain" db import "$family" "$data/$file" -o "$db" --device "$device" --source "$source" \
        --origin "$origin" --licence "$licence" --date "$date" "$@"
}

origin="https://github.com/ai-dynamo/aiconfigurator@095f58a51c4c" licence=Apache-2.0 date=2026-08-21
import aic-gemm aiconfigurator/a100_gemm_bf16_sglang-0.5.10.csv $A100 "aiconfigurator sglang-0.5.10"
import aic-causal-attn aiconfigurator/a100_causal_attn_fwd_bf16_sglang-0.5.10.csv $A100 "aiconfigurator sglang-0.5.10"
import aic-nccl aiconfigurator/a100_nccl_2.27.3.csv $A100 "aiconfigurator nccl-2.27.3"
import aic-gemm aiconfigurator/h100_gemm_bf16_sglang-0.5.14.csv $H100 "aiconfigurator sglang-0.5.14"
import aic-causal-attn aiconfigurator/h100_causal_attn_fwd_bf16_sglang-0.5.14.csv $H100 "aiconfigurator sglang-0.5.14"
import aic-full-attn aiconfigurator/h100_full_attn_fwd_bf16_sglang-0.5.14.csv $H100 "aiconfigurator sglang-0.5.14"
import aic-nccl aiconfigurator/h100_nccl_2.27.3.csv $H100 "aiconfigurator nccl-2.27.3"

origin="https://github.com/microsoft/vidur@7d47513363ec" licence=MIT date="not recorded"
import vidur-layer vidur/a100_Meta-Llama-3-8B_layer_ops_ms.csv $A100 "vidur layer ops" --shape llama-3-8b
import vidur-layer vidur/h100_Llama-2-7b-hf_layer_ops_ms.csv $H100 "vidur layer ops" --shape llama-2-7b
import vidur-all-reduce vidur/a100_dgx_all_reduce_ms.csv $A100 "vidur dgx"
import vidur-all-reduce vidur/h100_dgx_all_reduce_ms.csv $H100 "vidur dgx"
import vidur-send-recv vidur/a100_dgx_send_recv_ms.csv $A100 "vidur dgx"
import vidur-send-recv vidur/h100_dgx_send_recv_ms.csv $H100 "vidur dgx"

origin="https://github.com/MooreThreads/SimuMax@4dcaae513ba7" licence=Apache-2.0
import simumax-gemm simumax/a100pcie_gemm_fwd_dgrad_wgrad_dev.csv $PCIE "simumax a100_pcie"
import simumax-attn simumax/a100pcie_causal_flash_attn_eff.csv $PCIE "simumax a100_pcie"

origin="https://github.com/sitar-lab/NeuSight@6945927d9afc" licence=MIT
import neusight-conv neusight/a100pcie80_conv2d_fwd_fp32_dev.csv $PCIE "neusight conv2d"

origin="https://github.com/sarchlab/triosim@3fb3c060b359" licence=MIT
import triosim-conv triosim/h100_vgg13_bs128_ops_us.csv $H100 "triosim vgg13"

if [ "${ONLY:-}" = import ]; then
    mv "$db" "$out/measured.db"
    exit
fi
for p in a100:$A100 a800:A800-SXM4-80GB h100:$H100; do
    "$disttrain" db fit "$db" --device "${p#*:}" -o "$out/${p%%:*}.sql"
done
