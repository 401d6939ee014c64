"""Trains a small transformer for 300 steps, and shorter in mixed precision. Every loss is compared."""

import lines
from torch_common import DEVICE, hash_of, prepare, torch

VOCABULARY, LENGTH, WIDTH, BATCH = 96, 48, 128, 16


class Transformer(torch.nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout, "gelu", batch_first=True,
                                                 norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text):
        x = self.tokens(text) + self.places(torch.arange(text.shape[1], device=text.device))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


def batch(step):
    """Text in which the two previous letters determine each letter."""
    generator = torch.Generator().manual_seed(1000 + step)
    text = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    for i in range(2, LENGTH + 1):
        text[:, i] = (text[:, i - 1] * 3 + text[:, i - 2] + 7) % VOCABULARY
    text = text.to(DEVICE)
    return text[:, :-1], text[:, 1:]


def train(say, steps, dtype=None, scaler=False, fused=False):
    torch.manual_seed(11)
    network = Transformer().to(DEVICE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=fused)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scale = torch.amp.GradScaler(DEVICE, enabled=scaler)
    losses = []
    for step in range(steps):
        text, following = batch(step)
        with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            out = network(text)
            loss = torch.nn.functional.cross_entropy(out.float().flatten(0, 1), following.flatten())
        optimizer.zero_grad(set_to_none=True)
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
        schedule.step()
        losses.append(loss.item())
    say("losses", lines.hash_of(*[float(loss).hex() for loss in losses]))
    say("first", f"{losses[0]:.6f}")
    say("last", f"{losses[-1]:.6f}")
    say("learned", losses[-1] < losses[0])
    say("weights", hash_of(*network.state_dict().values()))


@lines.case
def transformer_300_steps(say):
    train(say, 300)


@lines.case
def bfloat16_autocast(say):
    train(say, 60, torch.bfloat16)


@lines.case
def float16_with_scaler(say):
    train(say, 60, torch.float16, scaler=True)


@lines.case
def fused_optimizer(say):
    train(say, 60, fused=True)


@lines.case
def checkpoint_and_resume(say):
    import os
    torch.manual_seed(12)
    network = Transformer(dropout=0.0).to(DEVICE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def step(number):
        text, following = batch(number)
        loss = torch.nn.functional.cross_entropy(network(text).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    step(0)
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, "kept.pt")
    went_on = [step(1), step(2)]
    kept = torch.load("kept.pt", map_location=DEVICE, weights_only=True)
    os.unlink("kept.pt")
    network.load_state_dict(kept["network"])
    optimizer.load_state_dict(kept["optimizer"])
    say("same after resuming", [step(1), step(2)] == went_on)
    say("losses", lines.hash_of(*went_on))


if __name__ == "__main__":
    prepare()
    lines.run()
