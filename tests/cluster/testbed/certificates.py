# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of one instance, and what it signs. Elliptic keys: a whole set takes milliseconds."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Two PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs what is asked for; its own certificate is ``ca.crt`` in the folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = build_name("dispatch-testbed", None)
        self.certificate = folder / "ca.crt"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        signed = self._begin(self._name, self._key).add_extension(constraints, critical=True)
        write_certificate(self.certificate, signed.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *, organization: str | None = None, hosts: Iterable[str] = ()) -> KeyPair:
        """A certificate for server and client alike.

        :param hosts: names and addresses that it is good for as a server.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(build_name(name, organization), key)
        if names := [build_host(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        write_certificate(pair.certificate, builder.sign(self._key, hashes.SHA256()))
        write_key(pair.key, key)
        return pair

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # clocks are set back now and then
            .not_valid_after(now + LIFETIME)
        )


def write_signing_keys(folder: Path) -> tuple[Path, Path]:
    """The pair that service-account tokens are signed and checked with: (private, public)."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "service-accounts.key", folder / "service-accounts.pub"
    write_key(private, key)
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(encoding, form))
    return private, public


def build_name(common_name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def build_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
