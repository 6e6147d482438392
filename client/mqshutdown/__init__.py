"""The program that stops the servers of an installation, as RocketMQ's ``mqshutdown`` does."""
