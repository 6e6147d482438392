"""TLS for tests: permanent certificates, a certificate authority for new certificates, and TLS clients."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import ClassVar

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.tls_settings import PortTls
from routekeeper.remoting.transport.port_context import load_port
from routekeeper.remoting.transport.secured import PortContext

CERTS = Path(__file__).with_name("nameserver") / "raft" / "certs"
AUTHORITY = CERTS / "authority.pem"


def pem(name: str) -> str:
    return str(CERTS / f"{name}.pem")


def key(name: str) -> str:
    return str(CERTS / f"{name}.key")


def port_context(*, mode: str = "permissive", client_auth: str = "none") -> PortContext:
    """Return the TLS context of a server's port, with the certificate of a member."""
    ca = pem("authority") if client_auth != "none" else ""
    return load_port(
        PortTls(mode=mode, cert=pem("member"), key=key("member"), ca=ca, client_auth=client_auth)
    )


def client_context(name: str | None = None) -> ssl.SSLContext:
    """Return a client's TLS context that trusts the test authority, and sends the certificate ``name``."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    if name is not None:
        context.load_cert_chain(pem(name), key(name))
    return context


class Peer:
    """A client that has one connection to a server. The connection may use TLS."""

    _all: ClassVar[list[Peer]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._all.append(self)
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []

    @classmethod
    async def connect(cls, listen: str, context: ssl.SSLContext | None = None) -> Peer:
        host, _, port = listen.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=context, limit=1 << 25))

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request and return the next answer.

        Raises:
            ConnectionError: If the server has closed the connection.
        """
        self.writer.write(request.encode())
        return await self.answer()

    async def answer(self) -> RemotingCommand:
        while not self._answers:
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionError("the server has closed")
            self._answers += [decode_command(frame) for frame in self._decoder.feed(data)]
        return self._answers.pop(0)

    async def closed(self) -> None:
        """Wait until the server has closed the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except OSError:
            pass

    def close(self) -> None:
        self.writer.close()

    @classmethod
    def close_all(cls) -> None:
        """Close all connections that a test has not closed."""
        while cls._all:
            cls._all.pop().close()


class Authority:
    """Certificate authority in a directory; it issues certificates for 127.0.0.1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "400", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"),
            *("-addext", "keyUsage=critical,keyCertSign"),
        )

    @staticmethod
    def is_possible() -> bool:
        return shutil.which("openssl") is not None

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.root, check=True, capture_output=True)

    def issue(self, name: str = "server", *, days: int = 200, password: str = "") -> tuple[str, str]:
        """Issue a certificate that is valid for ``days`` days; return its path and the path of its key.

        The files replace those of an earlier certificate with the same name.
        """
        (self.root / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", f"/CN={name}"),
            *("-keyout", "new.key", "-out", "new.csr"),
            *(("-passout", f"pass:{password}") if password else ("-nodes",)),
        )
        self._openssl(
            *("x509", "-req", "-in", "new.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", str(days), "-extfile", "names", "-out", "new.pem"),
        )
        for kind in ("key", "pem"):
            os.replace(self.root / f"new.{kind}", self.root / f"{name}.{kind}")
        return str(self.root / f"{name}.pem"), str(self.root / f"{name}.key")
