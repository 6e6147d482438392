"""What no input may do: raise anything but a refusal, or cost more than its bytes allow."""
