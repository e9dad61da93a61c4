//! The hot loops of storage integrity and encryption: SHA-2 over many blocks, AES-XTS, CBC-CTS, ESSIV, HCTR2, Adiantum, SM4 and Speck.
