"""A throw-away CA, made by the openssl command, and certificates of it that are as wrong as a test wants."""

import datetime
import os
import subprocess

CONFIG = """
[ca]
default_ca = it
[it]
database = {folder}/index
new_certs_dir = {folder}
serial = {folder}/serial
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
[req]
distinguished_name = none
[none]
"""


def run(*words):
    p = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
    assert p.returncode == 0, p.stdout.decode(errors="replace")


def at(days):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")


class Authority:
    def __init__(self, folder, name):
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.config = os.path.join(self.folder, "config")
        with open(self.config, "w", encoding="ascii") as f:
            f.write(CONFIG.format(folder=self.folder))
        with open(os.path.join(self.folder, "serial"), "w", encoding="ascii") as f:
            f.write("1000\n")
        open(os.path.join(self.folder, "index"), "w", encoding="ascii").close()
        self.cert, self.key = os.path.join(self.folder, "ca.pem"), os.path.join(self.folder, "ca.key")
        base = os.path.join(self.folder, "ca")
        with open(base + ".ext", "w", encoding="ascii") as f:
            f.write("keyUsage=critical,keyCertSign,cRLSign\nbasicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\n")
        run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key,
            "-out", base + ".csr", "-subj", "/CN=" + name, "-config", self.config)
        # From a day ago, as what it issues: clocks may differ.
        run("openssl", "ca", "-batch", "-notext", "-selfsign", "-config", self.config, "-keyfile", self.key, "-in", base + ".csr",
            "-out", self.cert, "-extfile", base + ".ext", "-startdate", at(-1), "-enddate", at(30))

    def issue(self, name, sans="DNS:localhost,IP:127.0.0.1", begin=-1, end=20, usage="serverAuth,clientAuth"):
        """The paths of a certificate and of its key. begin, end: days from now."""
        base = os.path.join(self.folder, name)
        with open(base + ".ext", "w", encoding="ascii") as f:
            f.write("basicConstraints=CA:FALSE\nextendedKeyUsage=%s\n" % usage + ("subjectAltName=%s\n" % sans if sans else ""))
        run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", base + ".key",
            "-out", base + ".csr", "-subj", "/CN=" + name, "-config", self.config)
        run("openssl", "ca", "-batch", "-notext", "-config", self.config, "-cert", self.cert, "-keyfile", self.key, "-in", base + ".csr",
            "-out", base + ".pem", "-extfile", base + ".ext", "-startdate", at(begin), "-enddate", at(end))
        os.chmod(base + ".key", 0o600)
        return base + ".pem", base + ".key"
