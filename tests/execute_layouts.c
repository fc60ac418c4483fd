/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The layouts that must train as one process does, and the reader of this table.
 *
 * A layout is tp/pp/dp, or tp/pp/dp/vpp, of encoder, LLM and generator; the microbatch is the
 * LLM's; one rank per GPU unless `ranks=` says otherwise.  Options: see `read_option`. */
#include "execute_ranks.h"

#define CHAIN EF_ENCODER ", " EF_LLM ", " EF_UNET
/* Of heads that four members can share. */
#define PAIR                                                                                       \
    "encoder: {kind: encoder, layers: 2, hidden: 24, ffn: 40, heads: 4, patch: 4, positions: "     \
    "16}, "                                                                                        \
    "llm: {kind: llm, layers: 3, hidden: 32, ffn: 48, heads: 4, kv_heads: 4, vocab: 61}"
/* Of which members hold all rows inside: no sequence parallelism. */
#define ROWS_WHOLE                                                                                 \
    "encoder: {kind: encoder, layers: 2, hidden: 24, ffn: 40, heads: 4, patch: 4, positions: 16, " \
    "sequence_parallel: false}, llm: {kind: llm, layers: 3, hidden: 32, ffn: 48, heads: 4, "       \
    "kv_heads: 4, vocab: 61, sequence_parallel: false}, " EF_UNET
#define GPT                                                                                        \
    "llm: {kind: llm, layers: 3, hidden: 32, ffn: 64, heads: 4, vocab: 61, tied: true, "           \
    "positions: 48, norm: layernorm, gated: false, bias: true"

/* A dense layer, then two with experts. */
#define EXPERTS(n, keys, more)                                                                     \
    EF_ENCODER                                                                                     \
    ", llm: {kind: llm, layers: 3, hidden: 32, ffn: 48, heads: 4, kv_heads: " keys ", "            \
    "vocab: 61, experts: " n ", top_k: 2, expert_ffn: 24, shared_ffn: 16, dense_first: 1" more     \
    "}, " EF_UNET

/* The same with one that merges 2 x 2 patches of half the side: as many rows for the LLM. */
#define MERGING(more)                                                                              \
    "encoder: {kind: encoder, layers: 2, hidden: 24, ffn: 40, heads: 2, patch: 2, merge: 2" more   \
    "}, " EF_LLM ", " EF_UNET

#define HEARING                                                                                    \
    "encoder: {kind: encoder, modality: audio, mel_bins: 16, layers: 2, hidden: 24, ffn: 40, "     \
    "heads: 2, patch: 4, channels: 1, positions: 16}, " EF_LLM ", " EF_UNET

static const struct {
    const char *name, *layout, *options;
} rows[] = {
    /* modules together and apart */
    {"colocated", "1/1/1 1/1/1 1/1/1", "colocated ranks=1"},
    {"colocated, microbatch 3", "1/1/1 1/1/1 1/1/1", "colocated ranks=1 mb=3 full"},
    {"disjoint", "1/1/1 1/1/1 1/1/1", "mpi"},
    {"two ranks for three GPUs", "1/1/1 1/1/1 1/1/1", "ranks=2"},
    {"colocated, dp 2", "1/1/2 1/1/2 1/1/2", "colocated"},
    {"colocated, pp 2/2/1 dp 1/1/2", "1/2/1 1/2/1 1/1/2", "colocated full"},
    {"generator dp 2", "1/1/1 1/1/1 1/1/2", ""},
    /* pipelines */
    {"pp 3", "1/3/1 1/3/1 1/3/1", "full"},
    {"pp 1/3/1", "1/1/1 1/3/1 1/1/1", ""},
    {"gpipe", "1/2/1 1/2/1 1/2/1", "gpipe mb=2"},
    {"gpipe, dp 2/2/1", "1/1/2 1/2/2 1/1/1", "gpipe full"},
    {"vpp 2", "1/1/1 1/2/1/2 1/1/1", "interleaved"},
    {"vpp 2 everywhere", "1/2/1/2 1/2/1/2 1/2/1/2", "interleaved full"},
    {"vpp 1/2/2, dp 2", "1/1/2 1/2/2/2 1/2/1/2", "interleaved full"},
    {"vpp 2, tp 2", "1/1/1 2/2/1/2 1/1/1", "interleaved full"},
    {"vpp 2, fan-in dp 4", "1/1/4 1/2/1/2 1/1/2", "interleaved mb=4 full"},
    {"vpp 2, fan-out dp 4", "1/1/1 1/2/1/2 1/1/4", "interleaved mb=4 full"},
    /* weight gradients put off */
    {"zb-h1, pp 3", "1/3/1 1/3/1 1/3/1", "zb-h1 mpi"},
    {"zb-h1, pp 2/2/1 dp 2/2/1", "1/2/2 1/2/2 1/1/1", "zb-h1 reorder"},
    {"zb-h1, tp 2, pp 2 everywhere", "2/2/1 2/2/1 2/2/1", "zb-h1 mpi"},
    {"zb-h1, tp 2, pp 2, dp 2 of the LLM", "1/1/2 2/2/2 1/1/1", "zb-h1 full"},
    {"zb-h1, colocated, pp 2/2/1 dp 1/1/2", "1/2/1 1/2/1 1/1/2", "zb-h1 colocated full"},
    {"zb-h1, dp 6/4/3", "1/1/6 1/1/4 1/1/3", "zb-h1 full"},
    {"zb-h1, dp 4 on 2 ranks, zero 0", "1/1/4 1/1/4 1/1/4", "zb-h1 colocated ranks=2 zero=0 full"},
    {"zb-h1, no overlap", "1/1/2 1/2/2 1/1/2", "zb-h1 apart full"},
    {"zb-h1, selective", "1/1/1 1/3/1 1/1/1", "zb-h1 recompute=selective full"},
    {"zb-h1, tp 2, full recompute", "2/1/1 2/2/1 2/1/1", "zb-h1 recompute=full full"},
    {"zb-h1, dropout", "1/1/2 1/2/2 1/1/1", "zb-h1 dropout=0.1 reorder full"},
    {"zb-h1, frozen encoder", "1/1/2 1/2/1 1/1/1", "zb-h1 frozen=ftt"},
    {"zb-h1, frozen LLM", "1/1/2 1/2/2 1/1/1", "zb-h1 frozen=tft full"},
    {"zb-h1, one sample with pictures", "1/1/4 1/2/2 1/1/2", "zb-h1 data=one full"},
    {"zb-h1, shared table, tp 2 pp 2 dp 2", "2/2/2", "zb-h1 gpt"},
    /* replicas: gcd brokers */
    {"fan-in 4/2/1", "1/1/4 1/2/2 1/1/1", "mb=2"},
    {"fan-in 4/1/2", "1/1/4 1/1/1 1/1/2", "mb=4 full"},
    {"fan-out 1/4/4", "1/1/1 1/1/4 1/1/4", "full"},
    {"dp 6/4/3", "1/1/6 1/1/4 1/1/3", ""},
    {"encoder pp 2 dp 3 to LLM pp 2 dp 2", "1/2/3 1/2/2 1/1/1", "full"},
    {"dp 6/4/3 on 5 ranks", "1/1/6 1/1/4 1/1/3", "ranks=5"},
    {"dp 3/4/6", "1/1/3 1/1/4 1/1/6", "full"},
    {"dp 3/2/4, gpipe", "1/1/3 1/2/2 1/1/4", "gpipe mb=3 full"},
    /* tensor parallelism */
    {"tp 2", "2/1/1 2/1/1 2/1/1", "mpi"},
    {"tp 2, colocated", "2/1/1 2/1/1 2/1/1", "colocated mb=2 full"},
    {"tp 2, dp 2, colocated", "2/1/2 2/1/2 2/1/2", "colocated full"},
    {"tp 1/2/1, dp 2/1/1", "1/1/2 2/1/1 1/1/1", "mb=2"},
    {"tp 1/2/4", "1/1/1 2/1/1 4/1/1", ""},
    {"tp 4/2/2, whole rows", "4/1/1 2/1/1 2/1/1", "whole mb=2"},
    {"tp 2, cp 2, whole rows", "2/1/2 2/1/1 1/1/1", "whole cp=2 mb=4 frozen=tft"},
    {"tp 2, dp 2, 1 to 4", "2/1/2 1/1/1 4/1/1", "mb=2"},
    {"tp 2/1/2, pp 1/2/1", "2/1/1 1/2/1 2/1/1", "full"},
    {"tp 2, pp 2, dp 2 of the LLM", "1/1/2 2/2/2 1/1/1", "full"},
    {"tp 2, pp 2 everywhere", "2/2/1 2/2/1 2/2/1", "full"},
    {"tp 2, pp 2 everywhere, gpipe", "2/2/1 2/2/1 2/2/1", "gpipe mb=2 full"},
    {"tp 2 and dp 2 everywhere", "2/1/2 2/1/2 2/1/2", "full"},
    {"fan-in, dp 4 to tp 2 pp 2", "1/1/4 2/2/1 1/1/1", "mb=4"},
    {"fan-out, tp 2 pp 2 to dp 4", "1/1/1 2/2/1 1/1/4", "mb=4"},
    {"encoder tp 2 pp 2 to LLM dp 4", "2/2/1 1/1/4 1/1/1", "full"},
    {"LLM dp 4 to generator tp 2 pp 2", "1/1/1 1/1/4 2/2/1", "full"},
    {"tp 2, vpp 2 of the LLM, dp 2 around", "1/1/2 2/2/1/2 1/1/2", "interleaved mb=2 full"},
    {"both fans", "1/1/4 2/2/1 1/1/4", "mb=4 full"},
    /* context parallelism of the LLM, whose sequences are of 2 to 40 rows in one to three documents */
    {"cp 2", "1/1/1 1/1/1 1/1/1", "cp=2 mpi"},
    {"cp 2, text only", "1/1/1 1/1/1 1/1/1", "cp=2 data=text"},
    {"cp 2, microbatch 3", "1/1/1 1/1/1 1/1/1", "cp=2 mb=3 full"},
    {"cp 4", "1/1/1 1/1/1 1/1/1", "cp=4"},
    {"cp 4, microbatch 4", "1/1/1 1/1/1 1/1/1", "cp=4 mb=4 full"},
    {"cp 2, tp 2", "1/1/1 2/1/1 1/1/1", "cp=2 mb=2"},
    {"cp 2, tp 2, pp 2", "1/1/1 2/2/1 1/1/1", "cp=2 mb=2 full"},
    {"cp 2, pp 2", "1/1/1 1/2/1 1/1/1", "cp=2 mpi"},
    {"cp 4, pp 2", "1/1/1 1/2/1 1/1/1", "cp=4 full"},
    {"cp 2, dp 2", "1/1/2 1/1/2 1/1/1", "cp=2 reorder"},
    {"cp 2, dp 2, zero 0", "1/1/1 1/1/2 1/1/2", "cp=2 zero=0 full"},
    {"cp 2, zero 0", "1/1/1 1/1/1 1/1/1", "cp=2 zero=0"},
    {"cp 2, tp 2, dp 2", "1/1/2 2/1/2 1/1/1", "cp=2 full"},
    {"cp 2, pp 2, dp 2, no overlap", "1/1/2 1/2/2 1/1/2", "cp=2 apart full"},
    {"cp 2, vpp 2", "1/1/1 1/2/1/2 1/1/1", "cp=2 interleaved"},
    {"cp 2, zb-h1, pp 3", "1/1/1 1/3/1 1/1/1", "cp=2 zb-h1"},
    {"cp 2, gpipe", "1/2/1 1/2/1 1/1/1", "cp=2 gpipe mb=2 full"},
    {"cp 2, selective", "1/1/1 1/2/1 1/1/1", "cp=2 recompute=selective"},
    {"cp 2, full recompute", "1/1/1 2/1/1 1/1/1", "cp=2 recompute=full"},
    {"cp 2, dropout", "1/1/1 1/2/1 1/1/1", "cp=2 dropout=0.1"},
    {"cp 4, tp 2, dropout", "1/1/1 2/1/1 1/1/1", "cp=4 dropout=0.1 mb=4 full"},
    {"cp 2, frozen encoder", "1/1/2 1/1/1 1/1/1", "cp=2 frozen=ftt"},
    {"cp 2, frozen LLM", "1/1/2 1/2/1 1/1/1", "cp=2 frozen=tft full"},
    {"cp 2, generator only", "1/1/1 1/2/1 1/1/2", "cp=2 frozen=fft full"},
    {"cp 2, encoder dp 4", "1/1/4 1/1/2 1/1/1", "cp=2 mb=2 full"},
    {"cp 2, colocated", "1/1/2 1/1/1 1/1/2", "cp=2 colocated"},
    {"cp 2, colocated, tp 2, pp 2", "1/1/8 2/2/1 1/1/4", "cp=2 colocated mb=4 full"},
    {"cp 2, encoder dp 4 with LLM pp 2", "1/1/4 1/2/1 1/1/1", "cp=2 with=l-- mb=4"},
    {"cp 2, one sample with pictures", "1/1/1 1/1/1 1/1/1", "cp=2 data=one full"},
    {"cp 2, no picture to draw", "1/1/1 1/1/1 1/1/1", "cp=2 data=captions full"},
    {"cp 2, shared table, pp 2 dp 2", "1/2/2", "cp=2 gpt"},
    {"cp 4, shared table, tp 2 pp 2", "2/2/1", "cp=4 gpt full"},
    {"cp 2, tp 2, whole rows", "2/2/1", "cp=2 rows full"},
    /* keys and values on a ring */
    {"cp 2, ring", "1/1/1 1/1/1 1/1/1", "cp=2 ring mpi"},
    {"cp 2, ring, text only", "1/1/1 1/1/1 1/1/1", "cp=2 ring data=text"},
    {"cp 4, ring", "1/1/1 1/1/1 1/1/1", "cp=4 ring mpi"},
    {"cp 4, ring, microbatch 4", "1/1/1 1/1/1 1/1/1", "cp=4 ring mb=4 full"},
    {"cp 8, ring, microbatch 3", "1/1/1 1/1/1 1/1/1", "cp=8 ring mb=3"},
    {"cp 2, ring, tp 2", "1/1/1 2/1/1 1/1/1", "cp=2 ring mb=2 mpi"},
    {"cp 2, ring, tp 2, whole rows", "4/1/1 2/1/1 2/1/1", "whole cp=2 ring mb=4"},
    {"cp 2, ring, tp 2, pp 2", "1/1/1 2/2/1 1/1/1", "cp=2 ring mb=2"},
    {"cp 4, ring, tp 2", "1/1/1 2/1/1 1/1/1", "cp=4 ring full"},
    {"cp 4, ring, pp 2", "1/1/1 1/2/1 1/1/1", "cp=4 ring"},
    {"cp 2, ring, pp 2", "1/1/1 1/2/1 1/1/1", "cp=2 ring full"},
    {"cp 2, ring, dp 2", "1/1/2 1/1/2 1/1/1", "cp=2 ring reorder"},
    {"cp 2, ring, dp 2, zero 0", "1/1/1 1/1/2 1/1/2", "cp=2 ring zero=0 full"},
    {"cp 2, ring, tp 2, dp 2, groups", "1/1/2 2/1/2 1/1/1", "cp=2 ring groups=020 full"},
    {"cp 2, ring, vpp 2", "1/1/1 1/2/1/2 1/1/1", "cp=2 ring interleaved full"},
    {"cp 2, ring, zb-h1, pp 3", "1/1/1 1/3/1 1/1/1", "cp=2 ring zb-h1"},
    {"cp 2, ring, selective", "1/1/1 1/2/1 1/1/1", "cp=2 ring recompute=selective full"},
    {"cp 4, ring, full recompute", "1/1/1 1/1/1 1/1/1", "cp=4 ring recompute=full"},
    {"cp 2, ring, dropout", "1/1/1 1/2/1 1/1/1", "cp=2 ring dropout=0.1 full"},
    {"cp 2, ring, frozen LLM", "1/1/2 1/2/1 1/1/1", "cp=2 ring frozen=tft"},
    {"cp 2, ring, colocated, tp 2, pp 2", "1/1/8 2/2/1 1/1/4", "cp=2 ring colocated mb=4 full"},
    {"cp 2, ring, shared table, pp 2 dp 2", "1/2/2", "cp=2 ring gpt"},
    {"cp 2, ring, tp 2, chunks", "1/1/1 2/1/1 1/1/1", "cp=2 ring chunks=2"},
    {"cp 2, ring, experts", "1/1/1 1/1/1 1/1/1", "moe cp=2 ring"},
    /* experts, here or dealt to replicas, whose microbatches differ in rows */
    {"experts", "1/1/1 1/1/1 1/1/1", "moe"},
    {"experts, pp 2, dp 2", "1/1/1 1/2/2 1/1/1", "moe mb=2"},
    {"experts, cp 2", "1/1/1 1/1/1 1/1/1", "moe cp=2"},
    {"ep 2", "1/1/1 1/1/2 1/1/1", "moe ep=2 mpi"},
    {"ep 2, pp 2", "1/1/1 1/2/2 1/1/1", "moe ep=2"},
    {"ep 2, dp 4", "1/1/1 1/1/4 1/1/1", "moe ep=2 reorder mpi"},
    {"ep 4", "1/1/1 1/1/4 1/1/1", "moe ep=4 zero=0"},
    {"ep 2, dp 4, zero 0", "1/1/1 1/1/4 1/1/1", "moe ep=2 zero=0"},
    {"ep 2, dp 4, pp 2, no overlap", "1/1/2 1/2/4 1/1/1", "moe ep=2 apart full"},
    {"ep 2, colocated", "1/1/2 1/1/2 1/1/2", "moe ep=2 colocated"},
    {"ep 2, gpipe, selective", "1/1/1 1/2/2 1/1/1", "moe ep=2 gpipe mb=2 recompute=selective"},
    {"ep 2, vpp 2", "1/1/1 1/2/2/2 1/1/1", "moe ep=2 interleaved full"},
    {"ep 2, zb-h1, full recompute", "1/1/1 1/2/2 1/1/1", "moe ep=2 zb-h1 recompute=full"},
    {"ep 2, dropout, encoder dp 4", "1/1/4 1/1/2 1/1/1", "moe ep=2 dropout=0.1 mb=2 full"},
    {"ep 2, frozen encoder", "1/1/2 1/1/2 1/1/1", "moe ep=2 frozen=ftt full"},
    {"ep 2, frozen LLM", "1/1/2 1/2/2 1/1/1", "moe ep=2 frozen=tft full"},
    {"ep 2, one sample with pictures", "1/1/1 1/1/2 1/1/1", "moe ep=2 data=one full"},
    /* experts split by tp, as other layers are */
    {"experts, tp 2", "1/1/1 2/1/1 1/1/1", "moe mpi"},
    {"experts, tp 4, zero 0", "1/1/1 4/1/1 1/1/1", "moek zero=0"},
    {"experts, tp 2, pp 2, dp 2", "1/1/2 2/2/2 1/1/1", "moe"},
    {"experts, tp 2, full recompute", "2/1/1 2/1/1 1/1/1", "moe recompute=full"},
    {"experts, tp 2, selective, zb-h1", "1/1/1 2/2/1 1/1/1", "moe recompute=selective zb-h1"},
    {"experts, tp 2, cp 2", "1/1/1 2/1/1 1/1/1", "moe cp=2 full"},
    {"experts, tp 2, vpp 2, dropout", "1/1/1 2/2/1/2 1/1/1", "moe interleaved dropout=0.1 full"},
    {"experts, tp 2, frozen LLM", "1/1/1 2/1/1 1/1/1", "moe frozen=tft full"},
    {"experts, tp 2, colocated", "2/1/1 2/1/1 2/1/1", "moe colocated full"},
    {"ep 2, tp 2", "1/1/1 2/1/2 1/1/1", "moe ep=2 mpi"},
    {"ep 2, tp 2, dp 4, zero 0", "1/1/1 2/1/4 1/1/1", "moe ep=2 zero=0 full"},
    {"ep 2, tp 2, dp 4", "1/1/1 2/1/4 1/1/1", "moe ep=2 reorder"},
    {"ep 2, tp 2, pp 2, zb-h1, full recompute", "1/1/1 2/2/2 1/1/1",
     "moe ep=2 zb-h1 recompute=full full"},
    /* experts dealt to those that a sequence is cut for, in groups within a lane, of lanes, and across their borders */
    {"cp 2, ep 2", "1/1/1 1/1/1 1/1/1", "moe cp=2 ep=2 mpi"},
    {"cp 2, ep 2, microbatch 3", "1/1/1 1/1/1 1/1/1", "moe cp=2 ep=2 mb=3 full"},
    {"cp 2, ep 4", "1/1/1 1/1/2 1/1/1", "moe cp=2 ep=4 reorder mpi"},
    {"cp 4, ep 2", "1/1/1 1/1/1 1/1/1", "moe cp=4 ep=2"},
    {"cp 2, ep 3", "1/1/1 1/1/3 1/1/1", "moe6 cp=2 ep=3"},
    {"cp 4, ep 6, ring", "1/1/1 1/1/3 1/1/1", "moe6 cp=4 ep=6 ring full"},
    {"cp 2, ep 2, dp 2, zero 0", "1/1/1 1/1/2 1/1/1", "moe cp=2 ep=2 zero=0"},
    {"cp 2, ep 4, dp 4", "1/1/1 1/1/4 1/1/1", "moe cp=2 ep=4 full"},
    {"cp 2, ep 2, tp 2", "1/1/1 2/1/1 1/1/1", "moe cp=2 ep=2"},
    {"cp 2, ep 2, tp 2, pp 2", "1/1/1 2/2/1 1/1/1", "moe cp=2 ep=2"},
    {"cp 2, ep 4, tp 2, no overlap", "1/1/2 2/1/2 1/1/1", "moe cp=2 ep=4 apart full"},
    {"cp 2, ep 2, ring", "1/1/1 1/1/1 1/1/1", "moe cp=2 ep=2 ring"},
    {"cp 2, ep 4, ring, zb-h1, full recompute", "1/1/1 1/2/2 1/1/1",
     "moe cp=2 ep=4 ring zb-h1 recompute=full"},
    {"cp 2, ep 2, vpp 2, dropout", "1/1/1 1/2/1/2 1/1/1", "moe cp=2 ep=2 interleaved dropout=0.1"},
    {"cp 2, ep 2, colocated", "1/1/2 1/1/1 1/1/2", "moe cp=2 ep=2 colocated"},
    {"cp 2, ep 4, gpipe, selective", "1/1/1 1/2/2 1/1/1",
     "moe cp=2 ep=4 gpipe mb=2 recompute=selective full"},
    {"cp 2, ep 2, frozen LLM", "1/1/2 1/2/1 1/1/1", "moe cp=2 ep=2 frozen=tft full"},
    {"cp 2, ep 2, one sample with pictures", "1/1/1 1/1/1 1/1/1", "moe cp=2 ep=2 data=one full"},
    /* a gate of shared experts */
    {"gated shared experts, dp 2", "1/1/1 1/1/2 1/1/1", "moeg"},
    {"gated shared experts, ep 2, tp 2", "1/1/1 2/1/2 1/1/1", "moeg ep=2"},
    {"gated shared experts, cp 2, ep 2", "1/1/1 1/1/1 1/1/1", "moeg cp=2 ep=2 full"},
    {"gated shared experts, tp 2, zb-h1, selective", "1/1/1 2/2/1 1/1/1",
     "moeg zb-h1 recompute=selective full"},
    /* biases of experts and of their router */
    {"experts with biases, dp 2", "1/1/1 1/1/2 1/1/1", "moeb"},
    {"experts with biases, ep 2", "1/1/1 1/1/2 1/1/1", "moeb ep=2 mpi"},
    {"experts with biases, ep 2, dp 4, zero 0", "1/1/1 1/1/4 1/1/1", "moeb ep=2 zero=0"},
    {"experts with biases, ep 2, tp 2", "1/1/1 2/1/2 1/1/1", "moeb ep=2"},
    {"experts with biases, tp 2, zb-h1, selective", "1/1/1 2/2/1 1/1/1",
     "moeb zb-h1 recompute=selective"},
    {"experts with biases, cp 2, ep 2, frozen LLM", "1/1/1 1/1/1 1/1/1",
     "moeb cp=2 ep=2 frozen=tft full"},
    {"gated shared experts with biases, ep 2, tp 2", "1/1/1 2/1/2 1/1/1", "moegb ep=2"},
    /* merged patches */
    {"merged, dp 2, pp 2", "1/2/2 1/2/2 1/1/1", "merged mpi"},
    {"merged, fan-in 4/2/1", "1/1/4 1/2/2 1/1/1", "merged mb=2 full"},
    {"merged, tp 2", "2/1/1 2/1/1 1/1/1", "merged"},
    {"merged, tp 2, whole rows", "2/1/1 2/1/1 1/1/1", "mergew mb=2 full"},
    {"merged, tp 2, cp 2, ring", "2/1/2 2/1/1 1/1/1", "merged cp=2 ring mb=4"},
    {"merged, tp 2, pp 2, full recompute", "2/2/1 2/1/1 1/1/1", "merged recompute=full"},
    {"merged, zb-h1, items, dp 4", "1/1/4 1/2/2 1/1/1", "merged zb-h1 window=1"},
    {"merged and normed, tp 2, zb-h1", "2/1/1 1/2/1 1/1/1", "mergen zb-h1"},
    {"means of patches, tp 2, pp 2", "2/2/1 1/1/2 1/1/1", "mergem"},
    {"means of patches, tp 2, dp 2, zb-h1", "2/1/2 1/2/1 1/1/1", "mergem zb-h1 mb=2"},
    {"means of patches, cp 2, full recompute", "1/1/2 1/1/1 1/1/1",
     "mergem cp=2 recompute=full full"},
    {"Qwen2-VL's tower, tp 2, pp 2", "2/2/1 1/1/2 1/1/1", "mergeq"},
    {"Qwen2-VL's tower, phases, cp 2", "1/1/2 1/1/1 1/1/1", "mergeq cp=2 window=all full"},
    {"Qwen2.5-VL's tower, tp 2, pp 2", "2/2/1 1/1/2 1/1/1", "mergev mpi"},
    {"Qwen2.5-VL's tower, tp 2, dp 2, zb-h1", "2/1/2 1/2/1 1/1/1", "mergev zb-h1 mb=2"},
    {"Qwen2.5-VL's tower, dp 4, cp 2, dropout", "1/1/4 1/1/2 1/1/1",
     "mergev cp=2 mb=2 dropout=0.1"},
    {"Qwen2.5-VL's tower, phases, full recompute", "1/1/2 1/1/1 1/1/1",
     "mergev window=all recompute=full full"},
    {"windows, tp 2, whole rows", "2/1/1 2/1/1 1/1/1", "windows full"},
    /* collectives and products in chunks */
    {"tp 2, 3 chunks", "2/1/1 2/1/1 2/1/1", "chunks=3 mpi"},
    {"tp 4 pp 2 of a table, 4 chunks", "4/2/1", "gpt chunks=4 mpi"},
    {"tp 2, pp 2, dp 2 of the LLM, 2 chunks", "1/1/2 2/2/2 1/1/1", "chunks=2 full"},
    {"zb-h1, tp 2, pp 2 everywhere, 5 chunks", "2/2/1 2/2/1 2/2/1", "zb-h1 chunks=5"},
    {"tp 2, full recompute, 8 chunks", "2/1/1 2/1/1 2/1/1", "chunks=8 recompute=full full"},
    /* gradients and parameters */
    {"dp 2, zero 0", "1/1/2 1/1/2 1/1/2", "zero=0"},
    {"dp 4 on 2 ranks, zero 0", "1/1/4 1/1/4 1/1/4", "colocated ranks=2 zero=0 full"},
    {"dp 4 on 2 ranks", "1/1/4 1/1/4 1/1/4", "colocated ranks=2"},
    {"dp 2, no overlap", "1/1/2 1/1/2 1/1/2", "apart full"},
    {"tp 2 dp 2 of the LLM, zero 0", "1/1/1 2/1/2 1/1/1", "zero=0 full"},
    /* optimizer states sharded in groups of replicas */
    {"dp 4 in groups of 2", "1/1/4 1/1/4 1/1/4", "groups=2/2/4"},
    {"tp 2 dp 4 in groups of 2, colocated", "2/1/4 2/1/4 1/1/8", "colocated groups=2/4/2 mpi"},
    {"groups of 1 and of 2, pp 2", "1/1/2 1/2/4 1/1/2", "groups=1/2/1 reorder"},
    {"groups of 2 with cp 2", "1/1/2 1/1/2 1/1/1", "cp=2 groups=1/2/0"},
    {"groups of 2 of cp 4, no overlap", "1/1/1 1/1/1 1/1/1", "cp=4 groups=0/2/0 apart full"},
    {"dp 4 on 2 ranks in groups of 2", "1/1/4 1/1/4 1/1/4", "colocated ranks=2 groups=2/2/2 full"},
    {"dp 8 on 4 ranks in groups of 4", "1/1/8 1/1/8 1/1/8",
     "colocated ranks=4 groups=4/2/8 batch=16"},
    {"shared table, dp 4 in groups of 2", "1/2/4", "gpt groups=2"},
    {"zb-h1, vpp 1, tp 2, dp 4 in groups of 2", "1/1/4 2/1/4 1/1/4",
     "zb-h1 groups=4/2/2 frozen=ftt full"},
    /* order of samples */
    {"reordered, dp 2/2/1", "1/1/2 1/2/2 1/1/1", "reorder mpi"},
    {"the same order, dp 2/2/1", "1/1/2 1/2/2 1/1/1", "full"},
    {"reordered, dp 4/2/2", "1/1/4 1/1/2 1/1/2", "mb=2 reorder full"},
    {"reordered, dp 6/4/3", "1/1/6 1/1/4 1/1/3", "reorder full"},
    {"reordered, vpp 2", "1/1/2 1/2/2/2 1/1/1", "interleaved reorder full"},
    {"reordered, dp 3/2/3, microbatch 6", "1/1/3 1/1/2 1/1/3", "mb=6 reorder full"},
    {"reordered, dp 2/3/1, microbatch 4", "1/1/2 1/1/3 1/1/1", "mb=4 reorder"},
    {"reordered, dp 3/1/2, microbatch 6", "1/1/3 1/1/1 1/1/2", "mb=6 reorder full"},
    {"reordered, gpipe, microbatch 3", "1/1/2 1/1/4 1/2/2", "gpipe mb=3 reorder full"},
    {"reordered, tp 2 pp 2", "1/1/2 2/2/1 1/1/1", "mb=2 reorder full"},
    /* Entrain's assignment: LLM work of some samples a microbatch later */
    {"entrain, dp 2 pp 2", "1/2/2 1/2/2 1/1/2", "entrain mb=3 batch=24 data=pictured mpi"},
    {"entrain, microbatch 4", "1/1/2 1/2/2 1/1/2", "entrain mb=4 batch=32 data=pictured"},
    {"entrain, zb-h1, dp 2 pp 2", "1/2/2 1/2/2 1/1/2", "entrain zb-h1 mb=3 batch=24 data=pictured"},
    {"entrain, LLM pp 3", "1/1/1 1/3/1 1/1/1", "entrain mb=4 batch=32 data=pictured"},
    {"entrain, tp 2", "2/1/1 2/2/1 1/1/1", "entrain mb=4 batch=32 data=pictured full"},
    {"entrain, frozen encoder", "1/1/2 1/2/2 1/1/2",
     "entrain frozen=ftt mb=3 batch=24 data=pictured"},
    {"entrain, encoder pp 2, all frozen but the generator", "1/2/2 1/2/2 1/1/2",
     "entrain frozen=fft mb=3 batch=24 data=pictured"},
    {"entrain, pictures and text apart", "1/1/2 1/2/2 1/1/2", "entrain mb=2"},
    {"entrain, text only", "1/1/2 1/2/2 1/1/2", "entrain data=text"},
    {"entrain, one sample with pictures", "1/1/2 1/2/2 1/1/2", "entrain data=one"},
    {"entrain, full recompute, zero 0", "1/1/2 1/2/2 1/1/2",
     "entrain zb-h1 recompute=full zero=0 mb=3 batch=24 data=pictured full"},
    {"entrain, dropout, on 3 ranks", "1/2/2 1/2/2 1/1/2",
     "entrain dropout=0.1 ranks=3 mb=3 batch=24 data=pictured"},
    /* encoders in phases on the LLM's GPUs */
    {"phases, pp 2 over the LLM's", "1/2/2 1/2/2 1/1/1", "with=l-- phases=p-- mb=1"},
    {"phases, zb-h1, tp 2", "2/2/1 2/2/1 1/1/1", "with=l-- phases=p-- zb-h1 full"},
    {"phases, frozen encoder", "1/2/1 1/2/1 1/1/1", "with=l-- phases=p-- frozen=ftt full"},
    /* eager forwards: as without them to the last bit */
    {"eager, dp 2 pp 2", "1/2/2 1/2/2 1/1/2", "ahead=3"},
    {"eager, zb-h1, LLM pp 3", "1/1/1 1/3/1 1/1/1", "ahead=2 zb-h1 full"},
    {"eager, entrain", "1/2/2 1/2/2 1/1/2", "ahead=2 entrain mb=3 batch=24 data=pictured"},
    /* recomputation */
    {"selective", "1/1/1 1/2/1 1/1/1", "recompute=selective full"},
    {"full recompute", "1/1/2 1/2/1 1/1/1", "recompute=full"},
    {"selective, vpp 2", "1/1/1 1/2/1/2 1/1/1", "interleaved recompute=selective full"},
    {"full recompute, vpp 2", "1/1/1 1/2/1/2 1/1/1", "interleaved recompute=full full"},
    {"full recompute, gpipe", "1/2/1 1/2/1 1/2/1", "gpipe recompute=full full"},
    {"tp 2, selective", "2/1/1 2/1/1 2/1/1", "recompute=selective full"},
    {"tp 2, full recompute", "2/1/1 2/1/1 2/1/1", "recompute=full full"},
    /* each module in its own way */
    {"recomputed and sharded apart", "1/1/2 1/2/2 1/1/2",
     "recompute=full/none/selective zero=0/1/0 mpi"},
    {"the same with tp 2 and vpp 2", "1/1/2 2/2/1/2 1/1/2",
     "interleaved recompute=none/full/selective zero=1/0/0 full"},
    {"apart on 2 ranks", "1/1/4 1/1/4 1/1/4",
     "colocated ranks=2 recompute=selective/none/full zero=1/0/1"},
    /* masks of dropout */
    {"dropout", "1/1/2 1/2/2 1/1/1", "dropout=0.1 reorder full"},
    {"dropout, tp 2, full recompute", "2/1/1 2/1/1 2/1/1", "dropout=0.1 recompute=full"},
    {"dropout, vpp 2, selective", "1/1/4 1/2/1/2 1/1/2",
     "dropout=0.1 interleaved mb=4 recompute=selective full"},
    /* what is trained */
    {"frozen encoder", "1/1/2 1/2/1 1/1/1", "frozen=ftt"},
    {"frozen LLM", "1/1/2 1/2/2 1/1/1", "frozen=tft"},
    {"frozen generator", "1/1/1 1/2/2 1/1/2", "frozen=ttf full"},
    {"generator only", "1/1/1 1/2/1 1/1/2", "frozen=fft full"},
    {"LLM only", "1/1/2 1/2/1 1/1/1", "frozen=ftf full"},
    {"encoder only", "1/1/2 1/1/1 1/1/1", "frozen=tff full"},
    {"projectors only", "1/1/2 1/2/1 1/1/1", "frozen=fff full"},
    {"frozen LLM, vpp 2", "1/1/1 1/2/1/2 1/1/2", "interleaved frozen=tft full"},
    {"frozen encoder, dp 4 to tp 2 pp 2", "1/1/4 2/2/1 1/1/1", "mb=4 frozen=ftt full"},
    {"generator only, gpipe, dp 4", "1/1/1 1/2/1 1/1/4", "gpipe mb=4 frozen=fft full"},
    {"tp 2, frozen LLM", "2/1/1 2/1/1 2/1/1", "frozen=tft full"},
    {"tp 2, generator only", "2/1/1 2/1/1 2/1/1", "frozen=fft full"},
    {"colocated, frozen LLM, full recompute", "1/1/2 1/1/2 1/1/2",
     "colocated frozen=tft recompute=full full"},
    /* guests on the GPUs of another module, beside modules with GPUs of their own */
    {"encoder dp 4 with LLM pp 2 dp 2", "1/1/4 1/2/2 1/1/1", "with=l-- mb=2 mpi"},
    {"encoder dp 4 with LLM tp 2 pp 2, single samples", "1/1/4 2/2/1 1/1/1", "with=l--"},
    {"generator dp 4 with LLM tp 2 pp 2", "1/1/2 2/2/1 1/1/4", "with=--l mb=4"},
    {"encoder and generator with LLM pp 4", "1/1/4 1/4/1 1/1/2", "with=l-l mb=4 full"},
    {"LLM with encoder dp 4", "1/1/4 1/2/1 1/1/1", "with=-e- mb=4 full"},
    {"generator with encoder with LLM, vpp 2", "1/1/2 1/2/1/2 1/1/2", "with=l-e interleaved mb=4"},
    {"zb-h1, encoder tp 2 with LLM pp 2 dp 2", "2/1/2 1/2/2 1/1/1", "with=l-- zb-h1 mb=2 full"},
    {"gpipe, encoder with LLM, frozen LLM", "1/1/2 1/2/2 1/1/1", "with=l-- gpipe frozen=tft full"},
    {"generator with LLM on 2 ranks", "1/1/1 1/2/2 1/1/2", "with=--l ranks=2 full"},
    {"colocated, vpp 2", "1/1/2 1/2/1/2 1/1/2", "colocated interleaved mb=4"},
    /* their work in bubbles */
    {"in bubbles, encoder dp 2 with LLM pp 3", "1/1/2 1/3/1 1/1/1", "with=l-- bubbles"},
    {"in bubbles, encoder and generator with LLM vpp 2", "1/1/2 1/2/1/2 1/1/2",
     "with=l-l interleaved mb=4 bubbles"},
    /* encoders whose replicas share the items of windows; colocated and not; more replicas than samples */
    {"items, dp 4 to dp 2", "1/1/4 1/1/2 1/1/1", "window=1"},
    {"items, dp 4 to dp 1", "1/1/4 1/2/1 1/1/1", "window=1 mb=2 mpi"},
    {"items, dp 3 to dp 2", "1/1/3 1/1/2 1/1/1", "window=1 reorder full"},
    {"items, dp 8 for 6 samples", "1/1/8 1/2/1 1/1/1", "batch=6"},
    {"items, dp 8 for 4 samples, LLM dp 2", "1/1/8 1/1/2 1/1/1", "batch=4 window=1 full"},
    {"items, one sample with pictures", "1/1/4 1/1/2 1/1/1", "window=1 data=one"},
    {"items, text only", "1/1/4 1/2/1 1/1/1", "window=all data=text full"},
    {"items, dp 8 with LLM tp 2 pp 2 dp 2", "1/1/8 2/2/2 1/1/1", "window=1 with=l-- batch=4"},
    {"window 2, dp 4 with LLM pp 2 dp 2", "1/1/4 1/2/2 1/1/1", "window=2 with=l--"},
    {"window all, dp 4 with LLM pp 2 dp 2", "1/1/4 1/2/2 1/1/1", "window=all with=l-- mpi"},
    {"window all, tp 2 with LLM tp 1 dp 4", "2/1/2 1/1/4 1/1/1", "window=all with=l--"},
    {"window 2, dp 8 with LLM tp 2 dp 4", "1/1/8 2/1/4 1/1/1", "window=2 with=l-- full"},
    {"window 2, tp 2 with LLM pp 4", "2/1/2 1/4/1 1/1/1", "window=2 with=l-- full"},
    {"window 2, everything colocated", "1/1/4 2/2/1 1/1/2", "window=2 colocated mb=2"},
    {"window all, dp 6 with LLM pp 3 dp 2 on 3 ranks", "1/1/6 1/3/2 1/1/1",
     "window=all with=l-- ranks=3 full"},
    {"window 3, apart, LLM pp 2 dp 2", "1/1/3 1/2/2 1/1/1", "window=3"},
    {"window 5, encoder pp 2, LLM pp 2", "1/2/2 1/2/1 1/1/1", "window=5 full"},
    {"window all, frozen encoder", "1/1/4 1/2/2 1/1/1", "window=all with=l-- frozen=ftt"},
    {"window 2, encoder and its projector frozen", "1/1/4 1/2/2 1/1/1",
     "window=2 with=l-- frozen=fft full"},
    {"window 2, dropout", "1/1/4 1/2/2 1/1/1", "window=2 with=l-- dropout=0.1"},
    {"window 2, vpp 2", "1/1/4 1/2/1/2 1/1/1", "window=2 interleaved mb=2 full"},
    {"window 2, zb-h1", "1/1/2 1/2/1 1/1/1", "window=2 with=l-- zb-h1"},
    {"window all, gpipe", "1/1/4 1/2/2 1/1/1", "window=all gpipe full"},
    {"window 2, full recompute, zero 0", "1/1/4 1/2/2 1/1/1",
     "window=2 with=l-- recompute=full/none/none zero=0/1/1 full"},
    {"window 2, reordered", "1/1/4 1/2/2 1/1/2", "window=2 with=l-- reorder full"},
    {"window 2, one sample with pictures", "1/1/4 1/2/2 1/1/1", "window=2 with=l-- data=one full"},
    /* generators whose replicas share what is drawn of a slot */
    {"drawn, dp 4 to dp 2", "1/1/1 1/1/2 1/1/4", "drawn"},
    {"drawn, dp 4, LLM pp 2, microbatch 2", "1/1/1 1/2/1 1/1/4", "drawn mb=2 mpi"},
    {"drawn, dp 3 to dp 2", "1/1/2 1/1/2 1/1/3", "drawn reorder"},
    {"drawn, dp 8 for 6 samples", "1/1/1 1/2/1 1/1/8", "batch=6 mpi"},
    {"drawn, dp 8 for 4 samples, LLM dp 2", "1/1/1 1/1/2 1/1/8", "batch=4 drawn full"},
    {"drawn, one sample with pictures", "1/1/1 1/1/2 1/1/4", "drawn data=one"},
    {"drawn, drawings alone", "1/1/1 1/1/2 1/1/4", "drawn data=drawings mb=2"},
    {"drawn, no picture to draw", "1/1/1 1/2/2 1/1/4", "drawn data=captions"},
    {"drawn, generator tp 2 pp 2", "1/1/1 1/1/2 2/2/2", "drawn"},
    {"drawn, LLM tp 2 pp 2, cp 2", "1/1/1 2/2/1 1/1/4", "drawn cp=2 mb=2"},
    {"drawn, with LLM tp 2 pp 2", "1/1/2 2/2/1 1/1/4", "drawn with=--l mb=4"},
    {"drawn, everything colocated, images in windows", "1/1/4 2/2/1 1/1/4",
     "drawn window=2 colocated mb=2"},
    {"drawn, zb-h1, generator pp 2", "1/1/1 1/2/2 1/2/4", "drawn zb-h1"},
    {"drawn, vpp 2", "1/1/2 1/2/1/2 1/1/4", "drawn interleaved mb=2"},
    {"drawn, gpipe, zero 0", "1/1/1 1/2/1 1/1/4", "drawn gpipe zero=0 full"},
    {"drawn, generator only", "1/1/1 1/2/1 1/1/4", "drawn frozen=fft mb=2"},
    {"drawn, frozen generator", "1/1/1 1/2/2 1/1/4", "drawn frozen=ttf full"},
    {"drawn, on 3 ranks", "1/1/1 1/2/2 1/1/6", "drawn ranks=3"},
    {"pair of shapes, one microbatch", "2/1/4 4/1/2", "pair colocated batch=16 mb=8"},
    {"pair of shapes, four microbatches", "2/1/4 4/1/2", "pair colocated batch=16 mb=2 full"},
    {"pair mirrored, one microbatch", "4/1/2 2/1/4", "pair colocated batch=16 mb=4 full"},
    {"pair mirrored, four microbatches", "4/1/2 2/1/4", "pair colocated batch=16"},
    {"cp 4, window all, encoder dp 8", "1/1/8 2/1/1", "pair cp=4 window=all with=l-- mpi"},
    {"cp 4, window 2, encoder tp 4 dp 2", "4/1/2 1/2/1", "pair cp=4 window=2 with=l-- full"},
    {"cp 4, window 2, apart, zb-h1", "2/1/2 1/2/1", "pair cp=4 window=2 zb-h1 full"},
    {"cp 2, window 1, one sample with pictures", "1/1/8 2/2/1",
     "pair cp=2 window=1 data=one with=l-- batch=4"},
    /* what the samples hold (elsewhere: every third has no picture, others one or several) */
    {"text only", "1/1/2 1/2/1 1/1/2", "data=text"},
    {"text only, vpp 2", "1/1/1 1/2/1/2 1/1/1", "data=text interleaved full"},
    {"text only, dp 4 to tp 2 pp 2", "1/1/4 2/2/1 1/1/1", "data=text mb=4 full"},
    {"no picture to draw", "1/1/2 1/2/1 1/1/2", "data=captions"},
    {"no picture to draw, tp 2", "2/1/1 2/1/1 2/1/1", "data=captions full"},
    {"no picture to see", "1/1/2 1/2/1 1/1/2", "data=drawings full"},
    {"no picture to see, dp 6/4/3", "1/1/6 1/1/4 1/1/3", "data=drawings reorder full"},
    {"one sample with pictures", "1/1/4 1/2/2 1/1/2", "data=one full"},
    {"one sample with pictures, reordered", "1/1/2 1/2/2/2 1/1/2",
     "data=one interleaved reorder full"},
    /* sounds instead of pictures to read */
    {"sound, dp 2, pp 2 of the LLM", "1/1/2 1/2/2 1/1/1", "sound mpi"},
    {"sound, tp 2, pp 2 everywhere", "2/2/1 2/2/1 2/2/1", "sound"},
    {"sound, pp 2, zb-h1, full recompute", "1/2/1 1/2/1 1/2/1", "sound zb-h1 recompute=full"},
    {"sound, cp 2, dropout", "1/1/2 1/1/1 1/1/1", "sound cp=2 dropout=0.1 full"},
    {"sound, items, dp 4 to dp 2", "1/1/4 1/1/2 1/1/1", "sound window=1"},
    /* a table that the first and the last stage share */
    {"shared table, tp 2 pp 2 dp 2", "2/2/2", "gpt"},
    {"shared table, pp 3 dp 2", "1/3/2", "gpt"},
    {"shared table, pp 2 dp 4 on 3 ranks", "1/2/4", "gpt ranks=3 full"},
    {"shared table, zero 0", "1/2/2", "gpt zero=0 full"},
    {"shared table, tp 4 pp 2", "4/2/1", "gpt"},
    {"shared table, tp 2 pp 2 dp 2, whole rows", "2/2/2", "rows full"},
    {"shared table, vpp 2, tp 2", "2/2/1/2", "gpt interleaved full"},
};

/* The layouts with which Megatron MIMO (arXiv 2605.27678) is compared with one layout for all: an encoder on 4 GPUs
 * beside an LLM on 4, or both on the same 8, where each has twice the replicas.  Every pair in every way below. */
static const struct {
    int enc_tp, enc_dp, tp, pp, dp;
} pairs[] = {
    {4, 1, 4, 1, 1}, {2, 2, 2, 1, 2}, {4, 1, 2, 2, 1}, {2, 2, 2, 2, 1},
    {4, 1, 1, 4, 1}, {2, 2, 1, 4, 1}, {2, 2, 1, 2, 2}, {2, 2, 4, 1, 1},
    {1, 4, 1, 1, 4}, {1, 4, 1, 4, 1}, {1, 4, 4, 1, 1}, {1, 4, 2, 1, 2},
};
/* Items are spread unevenly over samples everywhere; with `data=one` most replicas of the encoder have none. */
static const struct {
    const char *name, *options;
    bool context; /* twice the GPUs are the LLM's cp, not replicas */
} ways[] = {
    {"plain", "", false},
    {"window all", "window=all", false},
    {"window 2", "window=2", false},
    {"items", "window=1 mb=2", false},
    {"items of one", "window=1 data=one", false},
    {"frozen encoder", "frozen=ftt", false},
    {"cp 2", "cp=2 mb=2", true},
    {"cp 2, window all", "cp=2 window=all", true},
};
enum {
    ROWS = sizeof(rows) / sizeof(rows[0]),
    PAIRS = sizeof(pairs) / sizeof(pairs[0]),
    WAYS = sizeof(ways) / sizeof(ways[0]),
    PLACES = 2 /* apart, together */
};

int n_rows(void)
{
    return ROWS;
}

int n_layouts(void)
{
    return ROWS + PAIRS * WAYS * PLACES;
}

static bool word_is(const char *s, const char *word, const char **value)
{
    size_t n = strlen(word);

    if (strncmp(s, word, n) != 0)
        return false;
    *value = s + n;
    return word[n - 1] == '=' || s[n] == '\0';
}

/* Not an assertion of a test: `--list` reads the table, too. */
static void must(bool ok, const char *s)
{
    if (ok)
        return;
    fprintf(stderr, "\"%s\" in the table of layouts\n", s);
    exit(99);
}

static int one_of(const char *s, const char *const *names)
{
    int i = 0;

    while (names[i] && strcmp(s, names[i]) != 0)
        i++;
    must(names[i] != NULL, s);
    return i;
}

/* Of all modules, or of each: "full/none/selective". */
static void read_recompute(const char *value, struct ranks_case *c)
{
    char text[64], *rest = text, *s = NULL;

    snprintf(text, sizeof(text), "%s", value);
    for (int m = 0; m < MODULES; m++) {
        char *next = strtok_r(rest, "/", &rest);

        s = next ? next : s;
        must(s != NULL, value);
        c->recompute[m] = (enum dt_block_recompute)one_of(s, dt_block_recompute_names);
    }
}

static void read_option(const char *s, struct ranks_case *c)
{
    static const char *const data[] = {"mixed", "text",     "captions", "drawings",
                                       "one",   "pictured", NULL};
    const char *v;

    if (word_is(s, "mb=", &v))
        c->microbatch = atoi(v);
    else if (word_is(s, "batch=", &v))
        c->batch = atoi(v);
    else if (word_is(s, "window=", &v))
        c->window = strcmp(v, "all") == 0 ? DT_PLAN_WINDOW_ALL : atoi(v);
    else if (word_is(s, "drawn", &v)) /* replicas of the generator share items */
        c->drawn = 1;
    else if (word_is(s, "ranks=", &v))
        c->ranks = atoi(v);
    else if (word_is(s, "cp=", &v))
        c->cp = atoi(v);
    else if (word_is(s, "ring", &v))
        c->ring = true;
    else if (word_is(s, "ep=", &v))
        c->ep = atoi(v);
    else if (word_is(s, "moe", &v))
        c->model = EXPERTS("4", "2", "");
    else if (word_is(s, "moek", &v)) /* heads, keys' too, for four members */
        c->model = EXPERTS("4", "4", "");
    else if (word_is(s, "moe6", &v)) /* six of them */
        c->model = EXPERTS("6", "2", "");
    else if (word_is(s, "moeb", &v))
        c->model = EXPERTS("4", "2", ", bias: true, norm: layernorm");
    else if (word_is(s, "moegb", &v))
        c->model = EXPERTS("4", "2", ", shared_gate: true, bias: true");
    else if (word_is(s, "moeg", &v))
        c->model = EXPERTS("4", "2", ", shared_gate: true");
    else if (word_is(s, "merged", &v))
        c->model = MERGING(", positions: 16");
    else if (word_is(s, "mergew", &v)) /* whole rows, as above */
        c->model = MERGING(", positions: 16, sequence_parallel: false");
    else if (word_is(s, "mergen", &v))
        c->model = MERGING(", projector_norm: layernorm, projector_bias: false");
    else if (word_is(s, "windows", &v)) /* of single patches, in all layers */
        c->model = "encoder: {kind: encoder, layers: 2, hidden: 24, ffn: 40, heads: 2, patch: 4, "
                   "positions: 16, window: 4, sequence_parallel: false}, " EF_LLM ", " EF_UNET;
    else if (word_is(s, "mergem", &v))
        c->model = MERGING(", positions: 16, merge_by: mean, projector: linear, "
                           "projector_norm: rmsnorm, projector_bias: false");
    else if (word_is(s, "mergev", &v)) /* of 6 x 4 patches, in two windows */
        c->model = MERGING(", head_dim: 8, channels: 6, grid_rotary: true, names: qwen2-vl, "
                           "window: 16, window_every: 2, gated: true, norm: rmsnorm");
    else if (word_is(s, "mergeq", &v))
        c->model = MERGING(", head_dim: 8, channels: 6, grid_rotary: true, names: qwen2-vl");
    else if (word_is(s, "recompute=", &v))
        read_recompute(v, c);
    else if (word_is(s, "frozen=", &v))
        memcpy(c->frozen, v, MODULES); /* t: trained, f: frozen */
    else if (word_is(s, "dropout=", &v))
        c->dropout = atof(v);
    else if (word_is(s, "data=", &v))
        c->data = (enum ef_data)one_of(v, data);
    else if (word_is(s, "gpt", &v))
        c->model = GPT "}";
    else if (word_is(s, "pair", &v))
        c->model = PAIR;
    else if (word_is(s, "sound", &v))
        c->model = HEARING;
    else if (word_is(s, "whole", &v))
        c->model = ROWS_WHOLE;
    else if (word_is(s, "rows", &v)) /* of which members hold all: no sequence parallelism */
        c->model = GPT ", sequence_parallel: false}";
    else if (word_is(s, "colocated", &v))
        c->colocated = true;
    else if (word_is(s, "zero=", &v)) /* of all modules, or of each: "0/1/0" */
        for (int m = 0; m < MODULES; m++)
            c->zero[m] = strlen(v) > 1 ? v[2 * m] - '0' : *v - '0';
    else if (word_is(s, "groups=", &v)) /* of each module: its zero_group */
        for (int m = 0; m < MODULES && strlen(v) > 2 * (size_t)m; m++)
            c->zero_group[m] = v[2 * m] - '0';
    else if (word_is(s, "with=", &v)) /* of each module: - on GPUs of its own, or of e, l, g */
        for (int m = 0; m < MODULES; m++)
            c->with[m] = (int)strcspn("-elg", (const char[]){v[m], '\0'});
    else if (word_is(s, "apart", &v)) /* gradients and parameters not under compute */
        c->apart = true;
    else if (word_is(s, "chunks=", &v))
        c->chunks = atoi(v);
    else if (word_is(s, "reorder", &v))
        c->reorder = true;
    else if (word_is(s, "entrain", &v))
        c->entrain = true;
    else if (word_is(s, "bubbles", &v))
        c->bubbles = true;
    else if (word_is(s, "phases=", &v)) /* of each module: p in phases */
        memcpy(c->phases, v, MODULES);
    else if (word_is(s, "ahead=", &v))
        c->ahead = atoi(v);
    else if (word_is(s, "full", &v)) /* with DT_CHECK_FULL only */
        c->full = true;
    else if (word_is(s, "mpi", &v)) /* over MPI without it, too */
        c->mpi = true;
    else
        c->schedule = (enum dt_pipe_schedule)one_of(s, dt_pipe_schedule_names);
}

static void read_options(const char *options, struct ranks_case *c)
{
    char text[128], *rest = text, *s;

    snprintf(text, sizeof(text), "%s", options);
    while ((s = strtok_r(rest, " ", &rest)))
        read_option(s, c);
}

/* Pair, way and place of the i-th of them.  Without DT_CHECK_FULL every pair is run in one way, apart or together. */
static void read_pair(int i, struct ranks_case *c)
{
    static char names[PAIRS * WAYS * PLACES][64], layouts[PAIRS * WAYS * PLACES][32];
    int pair = i / (WAYS * PLACES), way = i / PLACES % WAYS, together = i % PLACES;
    int dp = pairs[pair].dp * (together && !ways[way].context ? 2 : 1);
    int enc_dp = pairs[pair].enc_dp * (together ? 2 : 1);

    c->model = PAIR;
    c->batch = 16;
    c->l[0] = (struct ef_layout){1, enc_dp, 1};
    c->l[1] = (struct ef_layout){pairs[pair].pp, dp, 1};
    c->tp[0] = pairs[pair].enc_tp;
    c->tp[1] = pairs[pair].tp;
    snprintf(layouts[i], sizeof(layouts[i]), "%d/1/%d %d/%d/%d", c->tp[0], enc_dp, c->tp[1],
             c->l[1].pp, dp);
    snprintf(names[i], sizeof(names[i]), "pair %d %s, %s", pair + 1,
             together ? "together" : "apart", ways[way].name);
    c->name = names[i];
    c->layout = layouts[i];
    read_options(ways[way].options, c);
    c->with[0] = together ? 2 : 0;
    c->full = way != pair % WAYS || together != (pair + pair / WAYS) % PLACES;
}

bool all_of_them(void)
{
    const char *s = getenv("DT_CHECK_FULL");

    return s && *s && *s != '0';
}

bool is_looked_at(const struct ranks_case *c, int i, int half)
{
    return all_of_them() || (!c->full && i % 2 == half);
}

void read_layout(int i, struct ranks_case *c)
{
    char text[128], *rest = text, *s;
    int m = 0;

    *c = (struct ranks_case){.model = CHAIN, .microbatch = 1};
    memset(c->frozen, 't', MODULES);
    for (int k = 0; k < MODULES; k++)
        c->zero[k] = 1;
    if (i >= ROWS) {
        read_pair(i - ROWS, c);
        return;
    }
    c->name = rows[i].name;
    c->layout = rows[i].layout;
    snprintf(text, sizeof(text), "%s", rows[i].layout);
    while ((s = strtok_r(rest, " ", &rest))) {
        must(m < MODULES, s);
        c->l[m].vpp = 1;
        must(sscanf(s, "%d/%d/%d/%d", &c->tp[m], &c->l[m].pp, &c->l[m].dp, &c->l[m].vpp) >= 3, s);
        m++;
    }
    read_options(rows[i].options, c);
}
