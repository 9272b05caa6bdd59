"""Results do not depend on the number of threads, where README says so."""
import unittest

from support import Case

NETS = {
    # Wide enough for products to be shared by threads and weights' gradients to come in several panels, few enough rows
    # (below a million multiplications) for our own products to be used on every processor.
    "mlp": "plugin = mlp\nsizes = 192, 512, 512, 10\nactivation = gelu",
    "vit": "plugin = vit\nimage_size = 32\npatch_size = 8\nnum_layers = 2\nnum_heads = 4\nhidden_dim = 64\nmlp_dim = 256\n"
           "num_classes = 10\ndropout = 0.1\nattention_dropout = 0.1",
}
CONFIG = """[run]
steps = 6
progress = off
[model]
%s
[data]
plugin = random_images
image_size = %d
channels = 3
classes = 10
length = 8
batch_size = 3
[optimizer]
plugin = %s
mode = fused
lr = 1e-2
log_grad_norm = yes
"""


class ThreadsTest(Case):
    def run_on(self, threads, *more):
        output = self.path("on%d" % threads)
        self.fuserun("c.ini", "run.threads=%d" % threads, "run.overwrite=yes", "run.output=" + output, *more)
        losses = [(line["loss"], line.get("grad_norm")) for line in self.updates(output)]
        return losses, self.read(output, "model.safetensors")

    def check(self, net, optimizer, *more):
        self.write("c.ini", CONFIG % (NETS[net], 8 if net == "mlp" else 32, optimizer))
        one = self.run_on(1, *more)
        self.assertEqual(len(one[0]), 6)
        for threads in (2, 3):
            other = self.run_on(threads, *more)
            self.assertEqual(other[0], one[0], (net, optimizer, threads, more))
            self.assertTrue(other[1] == one[1], (net, optimizer, threads, more))

    def test_nets_and_modes(self):
        for net in NETS:
            for mode in ("fused", "per_param", "foreach"):
                self.check(net, "adamw", "optimizer.mode=" + mode)

    def test_clipping_and_recomputing(self):
        for algorithm in ("deferred", "two_pass", "keep"):
            self.check("vit", "adam", "optimizer.clip_grad_norm=0.5", "optimizer.clip_algorithm=" + algorithm)
        self.check("vit", "adam", "memory.recompute=blocks")

    def test_rules_that_look_at_a_whole_parameter(self):
        for optimizer in ("adafactor", "muon"):
            self.check("mlp", optimizer, *(["model.freeze=*bias"] if optimizer == "muon" else []))


if __name__ == "__main__":
    unittest.main()
