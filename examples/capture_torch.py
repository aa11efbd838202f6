"""What a small torch model read and computed in a training step, captured and verified.

    python examples/capture_torch.py
"""

import sys

try:
    import torch
except ImportError:
    print("torch is not installed: left out")
    sys.exit(0)

import quantgate


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(64, 128, dtype=torch.bfloat16)
        self.fc2 = torch.nn.Linear(128, 64, dtype=torch.bfloat16)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x)))


torch.manual_seed(1)
model = Block()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with quantgate.capture(model, layers=r".*fc1", steps=[0], what="x,weight,bias,dy,y,dx,dw") as c:
    for step in range(2):
        # x asks for its gradient: else fc1, the first layer, computes no dx.
        x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        c.step()
report = c.verify(recipe="bf16")
print(report)
print("within its bound" if report.passed else "not within its bound")
sys.exit(0 if report.passed else 1)
