"""Which engines share bytes: terrace.vllm.fingerprint. A part of test_contract.py, which has installed the stand-ins for
vLLM before it imports this."""

import concurrent.futures
import os
import shutil
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

from terrace.vllm import fingerprint


class Fingerprints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-contract-")
        self.addCleanup(shutil.rmtree, self.folder)

    def model(self, name, weights, config=b"{}"):
        path = os.path.join(self.folder, name, "model")
        os.makedirs(path)
        for file, data in (("model.safetensors", weights), ("config.json", config), ("README.md", os.urandom(8))):
            with open(os.path.join(path, file), "wb") as out:
                out.write(data)
        return path

    def test_weights(self):
        same = [fingerprint.weights_of(self.model(name, b"w" * 1000), None, None) for name in ("a", "b")]
        self.assertEqual(same[0], same[1])
        self.assertNotEqual(same[0], fingerprint.weights_of(self.model("c", b"w" * 999 + b"x"), None, None))
        self.assertNotEqual(same[0], fingerprint.weights_of(self.model("d", b"w" * 1000, b"{1}"), None, None))
        with unittest.mock.patch.object(fingerprint, "FULL_BYTES", 100):
            large = fingerprint.weights_of(self.model("e", b"w" * 1000), None, None)
            other = self.model("f", b"w" * 1000)
            os.utime(os.path.join(other, "model.safetensors"), ns=(1, 1))
            self.assertNotEqual(large, fingerprint.weights_of(other, None, None))

    def test_groups(self):
        """Scheduler and worker have one layout, also where the scheduler's configuration has one form of several."""
        def form(size, **more):
            return types.SimpleNamespace(page_size_bytes=size, **more)

        def group(spec, *layers):
            return types.SimpleNamespace(kv_cache_spec=spec, layer_names=list(layers))
        forms = {"a": form(64), "b": form(32)}
        worker, scheduler = group(types.SimpleNamespace(kv_cache_specs=forms), "a", "b"), group(forms["a"], "a", "b")
        self.assertEqual(fingerprint.group_text(0, worker), fingerprint.group_text(0, scheduler))
        self.assertIsNone(fingerprint.group_bytes(worker))
        self.assertEqual(fingerprint.group_bytes(group(form(64, unpadded_page_size_bytes=48), "a", "b")), 96)
        for other in (group(form(32), "a", "b"), group(forms["a"], "a"), group(form(64, window=128), "a", "b")):
            self.assertNotEqual(fingerprint.group_text(0, other), fingerprint.group_text(0, scheduler))
        self.assertNotEqual(fingerprint.group_text(1, scheduler), fingerprint.group_text(0, scheduler))

    def test_weights_of_an_unknown_kind(self):
        """Their bytes are not looked at: JSON files alone do not tell two models apart."""
        path = self.model("k", b"")
        os.rename(os.path.join(path, "model.safetensors"), os.path.join(path, "model.tensors"))
        model = types.SimpleNamespace(model=path, revision=None, hf_config_path=None, model_weights="",
                                      hf_config=types.SimpleNamespace())
        with self.assertRaisesRegex(ValueError, "no weights in .*model.*safetensors.*terrace.identity"):
            fingerprint.weights_of_model(model, "")
        named = fingerprint.weights_of_model(model, "revision 7")
        self.assertEqual(named, fingerprint.weights_of_model(model, "", "dummy"))
        self.assertTrue(named.startswith("bytes "))
        # An adapter of such files is one whose bytes cannot be read.
        self.assertFalse(fingerprint.has_weights(path))
        self.assertTrue(fingerprint.has_weights(self.model("l", b"")))

    def test_code_beside_the_weights(self):
        """--trust-remote-code runs it."""
        paths = [self.model(name, b"w") for name in ("m", "n")]
        for path in paths:
            with open(os.path.join(path, "modeling.py"), "w", encoding="utf-8") as code:
                code.write("# " + path)
        self.assertNotEqual(*[fingerprint.weights_of(path, None, None) for path in paths])

    def text(self, model=(), cache=(), load_format="auto"):
        """text_of() of an engine with these settings."""
        path = os.path.join(self.folder, "text", "model")
        if not os.path.exists(path):
            self.model("text", b"w")
        settings = {"model": path, "revision": None, "hf_config": types.SimpleNamespace(to_dict=dict), "dtype": "bfloat16",
                    "quantization": None, "quantization_config": None, "seed": 0, "code_revision": None,
                    "max_model_len": 64, "get_head_size": lambda: 64}
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(**{**settings, **dict(model)}),
            cache_config=types.SimpleNamespace(**{"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": [],
                                                  "prefix_caching_hash_algo": "sha256", **dict(cache)}),
            parallel_config=types.SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1,
                                                  decode_context_parallel_size=1, prefill_context_parallel_size=1),
            load_config=types.SimpleNamespace(load_format=load_format, model_loader_extra_config={}),
            speculative_config=None)
        spec = types.SimpleNamespace(block_size=16)
        kv_cache = types.SimpleNamespace(kv_cache_layout="NHD", kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=spec)])
        platform = types.SimpleNamespace(is_cpu=lambda: False, device_name="test")
        modules = {"vllm": types.SimpleNamespace(__version__="0"),
                   "vllm.platforms": types.SimpleNamespace(current_platform=platform)}
        with unittest.mock.patch.dict(sys.modules, modules):
            return fingerprint.text_of(config, kv_cache)

    def test_quantization_settings(self):
        self.assertNotEqual(*[self.text(model={"quantization_config": {"linear": kind}}) for kind in ("fp8", "mxfp8")])

    def test_layers_of_another_cache_dtype(self):
        self.assertNotEqual(self.text(), self.text(cache={"kv_cache_dtype_skip_layers": ["0"]}))
        self.assertEqual(*[self.text(cache={"kv_cache_dtype_skip_layers": layers}) for layers in (["0", "1"], ["1", "0"])])

    def test_seed(self):
        """It makes dummy weights. Of others it changes what is sampled, and no page."""
        self.assertNotEqual(*[self.text(model={"seed": seed}, load_format="dummy") for seed in (1, 2)])
        self.assertEqual(*[self.text(model={"seed": seed}) for seed in (1, 2)])

    def test_large_weights_are_sampled(self):
        path = self.model("o", b"w" * 1000)
        self.assertFalse(fingerprint.sampled(path))
        self.assertFalse(fingerprint.sampled("some/model"))
        with unittest.mock.patch.object(fingerprint, "FULL_BYTES", 100):
            self.assertTrue(fingerprint.sampled(path))

    def test_rope_that_depends_on_length(self):
        for rope, matters in (({"rope_type": "llama3"}, False), ({"rope_type": "yarn"}, False), ({"rope_type": "dynamic"}, True),
                              ({"type": "longrope"}, True), ({"rope_type": "default"}, False)):
            text = fingerprint.model_config_text(types.SimpleNamespace(to_dict=lambda rope=rope: {"rope_scaling": rope}))
            self.assertEqual(bool(fingerprint._LENGTH_MATTERS.search(text)), matters, rope)

    def test_a_configuration_of_another_repository(self):
        """--hf-config-path: the configuration's commit says nothing of the weights."""
        commit = "0123456789abcdef0123456789abcdef01234567"
        local = [fingerprint.weights_of(self.model(name, name.encode() * 100), None, commit) for name in ("g", "h")]
        self.assertNotEqual(*local)
        hub = types.SimpleNamespace(model="some/model", revision=None, hf_config_path="other/model", model_weights="",
                                    hf_config=types.SimpleNamespace(_commit_hash=commit))
        with self.assertRaisesRegex(ValueError, "which revision of 'some/model'"):
            fingerprint.weights_of_model(hub, "")
        hub.hf_config_path = None
        self.assertEqual(fingerprint.weights_of_model(hub, ""), "commit " + commit)

    def test_weights_in_an_object_store(self):
        """vLLM has the JSON files alone in the folder then."""
        for name in ("i", "j"):
            path = self.model(name, b"")
            os.remove(os.path.join(path, "model.safetensors"))
            model = types.SimpleNamespace(model=path, revision=None, hf_config_path=None,
                                          model_weights="s3://bucket/" + name, hf_config=types.SimpleNamespace())
            with self.assertRaisesRegex(ValueError, "s3://bucket/%s.*terrace.identity" % name):
                fingerprint.weights_of_model(model, "")
            self.assertIn("s3://bucket/" + name, fingerprint.weights_of_model(model, "revision 7"))

    def test_commits(self):
        commit = "0123456789abcdef0123456789abcdef01234567"
        self.assertEqual(fingerprint.weights_of("some/model", None, commit), "commit " + commit)
        self.assertEqual(fingerprint.weights_of("some/model", commit, None), "commit " + commit)
        snapshot = os.path.join(self.folder, "snapshots", commit)
        os.makedirs(snapshot)
        self.assertEqual(fingerprint.weights_of(snapshot, "main", None), "commit " + commit)
        self.assertEqual(fingerprint.weights_of(snapshot + "/", None, None), "commit " + commit)
        inside = [os.path.join(snapshot, "checkpoint-%d" % number) for number in (100, 200)]
        for path in inside:
            os.makedirs(path)
        self.assertEqual([fingerprint.weights_of(path, None, None) for path in inside],
                         ["commit %s/checkpoint-%d" % (commit, number) for number in (100, 200)])
        absent = os.path.join(self.folder, "absent", "snapshots", commit)
        with self.assertRaisesRegex(ValueError, "which revision of"):
            fingerprint.weights_of(absent, None, None)
        for revision in (None, "main"):
            with self.assertRaisesRegex(ValueError, "which revision of 'some/model'.*full commit hash"):
                fingerprint.weights_of("some/model", revision, None)


class AdaptersTest(unittest.TestCase):
    """LoRA adapters are hashed beside the scheduler's thread, which calls digest()."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-contract-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.write(b"a" * 1000)
        self.adapters = fingerprint.Adapters()
        self.addCleanup(self.adapters.close)

    def write(self, weights):
        path = os.path.join(self.folder, "adapter_model.safetensors")
        with open(path + ".new", "wb") as file:
            file.write(weights)
        os.replace(path + ".new", path)

    def hashed(self):
        """digest() once the thread has done its work."""
        self.adapters.digest(self.folder)
        concurrent.futures.wait([digest for _, digest in self.adapters._known.values() if digest], 60)
        return self.adapters.digest(self.folder)

    def test_no_call_waits(self):
        going_on, real, threads = threading.Event(), fingerprint.digest_of, []
        self.addCleanup(going_on.set)

        def slow(path):
            threads.append(threading.current_thread())
            going_on.wait(60)
            return real(path)
        with unittest.mock.patch.object(fingerprint, "digest_of", slow):
            self.assertEqual([self.adapters.digest(self.folder) for _ in range(3)], [None] * 3)
            going_on.set()
            self.assertEqual(self.hashed(), real(self.folder).encode())
        self.assertEqual(len(threads), 1)
        self.assertIsNot(threads[0], threading.current_thread())

    def test_changed_while_it_is_hashed(self):
        real = fingerprint.digest_of

        def changed(path):
            digest = real(path)
            self.write(b"b" * 1000)
            return digest
        with unittest.mock.patch.object(fingerprint, "digest_of", changed):
            self.assertIsNone(self.hashed())

    def test_changed_later(self):
        self.assertIsNotNone(self.hashed())
        self.write(b"b" * 1000)
        self.assertIsNone(self.adapters.digest(self.folder))
        self.write(b"a" * 1000)
        self.assertIsNone(self.hashed())  # nor ever again
