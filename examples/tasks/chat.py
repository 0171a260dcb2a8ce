# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import optax

from dovetail_data import Bytes, Chat, Template, batches, jsonl, pad, show, write
from dovetail_models import init, llama
from dovetail_train import Trainer, lm_loss

template = Template(  # Template.load reads the one in the folder of a model
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}",
    eos="<|eos|>",
)
said = '{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}'
line = '{"messages": [' + said + "]}\n"
Path("chats.jsonl").write_text(line % ("red", "rot") + line % ("blue", "blau"))

encoder = Chat(Bytes(), template=template)  # or Pretrained("FOLDER OF A MODEL")
rows = pad(write(jsonl("chats.jsonl"), "chats", encoder=encoder), length=128)
print(show(rows, [0, 1]))  # what is trained stands in ⟦ ⟧
model = init(llama(vocab_size=258, embed=64, depth=1, heads=4, mlp=128), seed=0)
trainer = Trainer(optax.adamw(3e-3), lm_loss())
result = trainer.fit(model, batches(rows, global_batch=8, seed=0), steps=60)
print(f"loss {result.scalars['loss']:.1f}")
# prints: loss 0.0
