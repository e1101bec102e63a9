"""A ticket from beginning to end, without a network: prune a ResNet-20, train it and its dense twin, save it.

    python recipes/digits_ticket.py --output out/digits          some minutes on two cores
    hf-px info out/digits; hf-px push out/digits me/resnet20-digits

The example under model_cards/examples/ comes from here.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

import hf_px
from hf_px.data import batches_of, digits, pruning_set
from hf_px.hub.ticket import command_line
from hf_px.models import resnet20

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output", type=Path, required=True, help="where the ticket goes")
parser.add_argument("--layout", default="packed", help="(default: packed)")
parser.add_argument("--scorer", default="px", help="(default: px)")
parser.add_argument("--sparsity", type=float, default=0.982, help="(default: 0.982)")
parser.add_argument("--epochs", type=int, default=20, help="(default: 20)")
parser.add_argument("--lr", type=float, default=0.1, help="of SGD with momentum, to 0 by a cosine (default: 0.1)")
parser.add_argument("--weight-decay", type=float, default=5e-4, help="(default: 5e-4)")
parser.add_argument("--batch-size", type=int, default=128, help="(default: 128)")
parser.add_argument("--seed", type=int, default=0, help="of weights, pruning set and batches (default: 0)")
args = parser.parse_args()

train, test = digits(32)
dense = resnet20(generator=torch.Generator().manual_seed(args.seed))
sample = pruning_set(*train, per_class=10, seed=args.seed)
mask = hf_px.prune(dense, args.scorer, sparsity=args.sparsity, batches=batches_of(*sample, 100), seed=args.seed)
ticket = mask.apply_(copy.deepcopy(dense))

accuracy = {}
for name, model in {"dense": dense, "ticket": ticket}.items():
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, weight_decay=args.weight_decay, nesterov=True
    )
    if name == "ticket":
        hf_px.keep(model, mask, optimizer)
    order = torch.Generator().manual_seed(args.seed)  # the same batches for both
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in tqdm(range(args.epochs), desc=f"training the {name}", unit="epoch"):
        for batch in torch.randperm(len(train[0]), generator=order).split(args.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(test[0].split(200), test[1].split(200)))
    accuracy[name] = right / len(test[0])

settings = {key: value for key, value in vars(args).items() if key not in ("output", "layout", "scorer")}
hf_px.Ticket(
    ticket,
    mask,
    scorer=args.scorer,
    settings=settings | {"pruning_data": "digits, 10 examples a class"},
    results=[
        {
            "dataset": "scikit-learn-digits",
            "dataset_name": "Handwritten digits of scikit-learn",
            "split": "test",
            "metric": "accuracy",
            "value": round(accuracy["ticket"], 4),
            "dense": round(accuracy["dense"], 4),
            "note": f"{len(test[0])} images, one seed, last epoch",
        }
    ],
    command=command_line(),
).save_pretrained(args.output, layout=args.layout)
size = sum(path.stat().st_size for path in args.output.glob("*.safetensors"))
print(f"accuracy: dense {accuracy['dense']:.4f}, ticket {accuracy['ticket']:.4f}; {size:,} bytes")
print(f'hf_px.from_pretrained("{args.output}")')
