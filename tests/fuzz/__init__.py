"""No input may raise anything but a refusal, or cost more than its bytes allow."""
