"""Gluon's Hopper surface in one place: tensor-map copies, memory barriers, warpgroup matrix products."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def make_barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate barriers whose phase ends after so many arrivals; fence before another warp uses them."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def fence_shared():
    """Make earlier writes to shared memory visible to tensor-map copies and to other warps' barriers."""
    fence_async_shared()


@gluon.jit
def arrive(barrier):
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def wait(barrier, phase):
    """Block until the phase of this parity has ended; a fresh barrier counts as having ended parity 1."""
    mbarrier.wait(barrier, phase)


@gluon.jit
def load_tile(descriptor, batch, head, row, full, buffer, BYTES: gl.constexpr):
    """Start a copy of one head's rows from `row` on; rows past the end arrive as zeros and count as bytes."""
    mbarrier.expect(full, BYTES)
    tma.async_copy_global_to_shared(descriptor, [batch, head, row, 0], full, buffer)


@gluon.jit
def store_tile(descriptor, batch, head, row, buffer):
    """Start a copy of a buffer to one head's rows from `row` on; rows past the end are not written."""
    fence_async_shared()
    tma.async_copy_shared_to_global(descriptor, [batch, head, row, 0], buffer)


@gluon.jit
def wait_stores():
    """Block until every store that this partition started has left its buffer."""
    tma.store_wait(0)


@gluon.jit
def start_product(a, b, accumulator, ADD: gl.constexpr):
    """Start accumulator (+)= a @ b on the matrix unit; read it through finish_products."""
    return warpgroup_mma(a, b, accumulator, use_acc=ADD, is_async=True)


@gluon.jit
def finish_products(product, PENDING: gl.constexpr):
    """Block until at most PENDING later products are unfinished, then return this one's value."""
    return warpgroup_mma_wait(PENDING, deps=[product])


def tile_descriptor(name, tensor, rows):
    """Describe B, H, S, D for copies of [rows, D]; ValueError names what a tensor map cannot express."""
    if tensor.stride(3) != 1:
        raise ValueError(f"{name}: stride of dimension 3 is {tensor.stride(3)}; it must be 1 (contiguous)")
    if tensor.data_ptr() % 16:
        raise ValueError(f"{name}: data starts at {tensor.data_ptr():#x}; a tensor map needs 16-byte steps")
    strides = list(tensor.stride())
    for dim in range(3):
        bytes_apart = strides[dim] * tensor.element_size()
        if tensor.shape[dim] == 1:
            strides[dim] = tensor.shape[3]  # never stepped over: any legal stride does
        elif bytes_apart % 16 or bytes_apart <= 0:
            raise ValueError(
                f"{name}: stride of dimension {dim} is {strides[dim]} elements ({bytes_apart} bytes); "
                "a tensor map needs a positive multiple of 16 bytes"
            )
    block = [1, 1, rows, tensor.shape[3]]
    element = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[tensor.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(block, element)
    return TensorDescriptor(tensor, list(tensor.shape), strides, block, layout)
