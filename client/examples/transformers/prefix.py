"""The packed blocks of one sequence, in a GPU's memory: leased, reserved, or private.

    sequence = Sequence(session, layout, gpu, allocate)
    sequence.begin(prompt)            # sequence.reused tokens are there: compute the others
    ...                               # wait_layer() before a layer's blocks are touched; pack K and V at sequence.addresses
    sequence.publish()                # when the stream is done: the prompt's new blocks are everybody's
    sequence.room(n)                  # addresses for n tokens in all, as the sequence grows
    sequence.close()

Nothing here needs torch: `allocate(bytes)` gives device memory as (address, owner), for blocks that the daemon has no room for and for
the tail of the sequence. Without a session (None) all blocks are such.
"""

import terrace


class Lost(Exception):
    """Blocks that were counted on are gone: begin the sequence anew, with session None."""


class Sequence:
    def __init__(self, session, layout, gpu, allocate, salt=b""):
        self.session, self.layout, self.gpu, self.salt = session, layout, gpu, salt
        self._allocate, self._owners = allocate, []
        self._lease = self._slots = self._published = None
        self._first_slot, self._keys = 0, []
        self.addresses = []  # of the blocks, in order
        self.reused = 0      # tokens of the prompt that need no computing
        self.stored = 0      # blocks that this sequence has published

    def begin(self, prompt):
        """Takes the longest stored prefix of the prompt, short of its last token, whose logits nobody has kept, and slots for the full
        blocks behind it."""
        n = self.layout.block_tokens
        if self.session:
            self._keys = terrace.chain(prompt, n, self.salt)
            self._take(self._keys[:(len(prompt) - 1) // n])
            self._reserve()
        self.room(len(prompt))

    def _take(self, keys):
        self._lease = self.session.lease(keys, gpu=self.gpu) if keys else None
        if not self._lease:
            return
        addresses = self._lease.addresses()
        while len(self.addresses) < len(addresses) and \
                self._lease.tokens(len(self.addresses)) == self.layout.block_tokens:
            self.addresses.append(addresses[len(self.addresses)])
        self.reused = len(self.addresses) * self.layout.block_tokens

    def _reserve(self):
        n, first = self.layout.block_tokens, len(self.addresses)
        keys = self._keys[first:]
        if not keys:
            return
        infos = [terrace.BlockInfo(parent=self._keys[i - 1] if i else None, position=i * n, tokens=n)
                 for i in range(first, len(self._keys))]
        self._slots, self._first_slot = self.session.reserve(keys, infos, gpu=self.gpu), first
        for address in self._slots.addresses():
            self.addresses.append(address or self._private())

    def _private(self):
        address, owner = self._allocate(self.layout.block_bytes)
        self._owners.append(owner)
        return address

    def room(self, tokens):
        """Blocks for so many tokens in all; true if there are new ones."""
        want = -(-tokens // self.layout.block_tokens)
        grown = want > len(self.addresses)
        while len(self.addresses) < want:
            self.addresses.append(self._private())
        return grown

    def wait_layer(self, layer, stream):
        """Work put into the stream after this finds the reused blocks' layer."""
        if self._lease:
            self._lease.wait_layer(layer, stream)

    def publish(self):
        """When the stream has done the prefill. Raises Lost if the reused bytes never came, or published blocks could not be kept."""
        try:
            if self._lease:
                self._lease.check()
            if not self._slots:
                return
            slots, self._slots = self._slots, None
            had = [status == terrace.Status.OK for status in slots.statuses]
            statuses, self._published = slots.commit(lease=True)
        except terrace.Error as error:
            raise Lost(str(error)) from error
        self.stored = statuses.count(terrace.Status.OK)
        addresses = self._published.addresses() if self._published else [0] * len(had)
        for i, address in enumerate(addresses):
            if had[i] and not address:
                raise Lost("a block was published and not leased")
            if had[i]:
                self.addresses[self._first_slot + i] = address

    def close(self):
        """Gives everything back; no work on the GPU may still read it."""
        for part in (self._slots, self._lease, self._published):
            if part:
                part.close()
        self._slots = self._lease = self._published = None
        self._owners, self.addresses = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
