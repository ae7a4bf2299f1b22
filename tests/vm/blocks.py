#!/usr/bin/python3
"""Self-describing blocks on a disk whose power is cut: looks whether all that were durable are there, and writes more.

  blocks.py [--check] TARGET STATE

TARGET is a block device, or an NBD URI. STATE is a file that tells what was written so far; where there is none, TARGET
is new. First every block of TARGET is read: each of its sectors must say the number of its block and a sequence number
that is at least the one that was durable, and not later than the last one that was written. Unless --check is given,
new ones are then written, some with FUA, some followed by a flush, until TARGET refuses; which it does not before its
power is cut. STATE.writing is there meanwhile.

A block is durable when its write was answered that had FUA, or when a flush was answered that was asked for after the
write was answered, on whichever connection. Exit status: 0, or 1 if a block is not what it must be.
"""

import json
import mmap
import os
import random
import struct
import sys
import threading
import zlib

BLOCKS = 512
# Blocks are apart, so that a new file has many extents; and every other one lies across two pages.
STRIDE = 20480
SECTOR = 512
BLOCK = 4096
# Blocks that are read at once.
SCOPE = 16
WRITERS = 8


class Device:
    """A block device, around the page cache. A durable write is one with FUA."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.memory = mmap.mmap(-1, BLOCK)

    def read(self, length, offset):
        memory = mmap.mmap(-1, length)
        return memory[:os.preadv(self.file, [memory], offset)]

    def write(self, data, offset, durable):
        self.memory[:] = data
        if os.pwritev(self.file, [self.memory], offset, os.RWF_DSYNC if durable else 0) != BLOCK:
            raise OSError("short write")

    def flush(self):
        os.fdatasync(self.file)


class Socket:
    """A connection to an NBD server."""

    def __init__(self, uri):
        import nbd

        self.fua = nbd.CMD_FLAG_FUA
        self.nbd = nbd.NBD()
        self.nbd.connect_uri(uri)

    def read(self, length, offset):
        return bytes(self.nbd.pread(length, offset))

    def write(self, data, offset, durable):
        self.nbd.pwrite(data, offset, self.fua if durable else 0)

    def flush(self):
        self.nbd.flush()


def connect(target):
    return Device(target) if target.startswith("/dev/") else Socket(target)


def place(number):
    return number * STRIDE + number % 2 * SECTOR


def block(number, sequence):
    return b"".join(sector(number, part, sequence) for part in range(BLOCK // SECTOR))


def sector(number, part, sequence):
    head = struct.pack("<8sIIQ", b"sequence", number, part, sequence)
    return head + struct.pack("<I", zlib.crc32(head)) * ((SECTOR - len(head)) // 4)


class State:
    """The sequence numbers of every block: the last one written, answered, and durable. 0 is a block of zeroes."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        try:
            with open(path) as file:
                self.__dict__.update(json.load(file))
        except FileNotFoundError:
            self.written, self.answered, self.durable = ([0] * BLOCKS for _ in range(3))
            self.flushes = self.fua = self.lost = 0

    def save(self):
        kept = ("written", "answered", "durable", "flushes", "fua", "lost")
        with open(self.path, "w") as file:
            json.dump({name: self.__dict__[name] for name in kept}, file)

    # ── Reading ──

    def check(self, target):
        wrong = 0
        for number in range(BLOCKS):
            if number % SCOPE == 0:
                first = place(number)
                data = target.read(SCOPE * STRIDE, first)
            start = place(number) - first
            found, fault = self.look(number, data[start:start + BLOCK])
            if fault:
                wrong += 1
                print(f"block {number}: {fault}; written {self.written[number]}, answered {self.answered[number]}, "
                      f"durable {self.durable[number]}")
            self.lost += found < self.answered[number]
            self.answered[number] = self.durable[number] = found
        return wrong

    def look(self, number, data):
        """The least sequence number of the block's sectors, and what is wrong with it."""
        least = self.written[number]
        for part in range(BLOCK // SECTOR):
            bytes_ = data[part * SECTOR:(part + 1) * SECTOR]
            sequence = struct.unpack_from("<Q", bytes_, 16)[0]
            if sequence == 0 and any(bytes_) or sequence != 0 and bytes_ != sector(number, part, sequence):
                return 0, f"sector {part} is damaged: {bytes_[:32].hex()}"
            if sequence > self.written[number]:
                return 0, f"sector {part} is from the future: {sequence}"
            if sequence < self.durable[number]:
                return 0, f"sector {part} is old: {sequence}"
            least = min(least, sequence)
        return least, None

    # ── Writing ──

    def write_until_refused(self, target):
        refusals = []
        writers = [threading.Thread(target=self.writer, args=(connect(target), which, refusals)) for which in range(WRITERS)]
        open(self.path + ".writing", "w").close()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        os.unlink(self.path + ".writing")
        return refusals

    def writer(self, target, which, refusals):
        chance = random.Random()
        try:
            while True:
                if chance.random() < 0.03:
                    self.flush(target)
                else:
                    # Each block has one writer, so one write at a time.
                    number = chance.randrange(which, BLOCKS, WRITERS)
                    self.write(target, number, chance.random() < 0.1)
        except Exception as error:
            refusals.append(str(error))

    def write(self, target, number, durable):
        self.written[number] += 1
        sequence = self.written[number]
        target.write(block(number, sequence), place(number), durable)
        with self.lock:
            self.answered[number] = sequence
            if durable:
                self.durable[number] = sequence
                self.fua += 1

    def flush(self, target):
        with self.lock:
            answered = self.answered.copy()
        target.flush()
        with self.lock:
            self.durable = list(map(max, self.durable, answered))
            self.flushes += 1


def main():
    arguments = sys.argv[1:]
    only_check = arguments[:1] == ["--check"]
    target, path = arguments[only_check:]
    state = State(path)
    durable, lost = sum(map(bool, state.durable)), state.lost
    wrong = state.check(connect(target))
    print(f"{durable} durable blocks, {wrong} are wrong; {state.lost - lost} others were lost, as they may")
    if wrong:
        return True
    state.save()
    if only_check:
        return False
    refusals = state.write_until_refused(target)
    state.save()
    print(f"refused at last: {refusals[0]}; so far {sum(state.written)} writes, {state.fua} with FUA, "
          f"{state.flushes} flushes")
    return False


sys.exit(main())
