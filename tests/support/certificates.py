"""Certificates for tests: an authority, and the certificates that it issues."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Returns the key usage of a certificate. Python 3.13 trusts no authority whose certificate does not state its
    usage.
    """
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class Authority:
    """A certificate authority. `certificate` is its file, for clients that trust the authority."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(_name("An authority of tests"), self._key, None)
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, host: str) -> Path:
        """Returns a file with a key and a certificate for a loopback address."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_name(host), key, host)
        file = self._folder / f"{host}.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        return file

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, host: str | None) -> x509.Certificate:
        now, issuer = datetime.now(UTC), _name("An authority of tests")
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
            .add_extension(_usage(authority=host is None), critical=True)
            .add_extension(own, critical=False)
            .add_extension(above, critical=False)
        )
        if host is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())
