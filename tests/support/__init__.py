"""What several tests share: small real projects, and workers in processes of their own."""
